#pragma once

// The threads of the CPU backend, without OpenMP: pools that outlive a graph, and how their threads wait for each other.

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_threadpool;

// A pool with at least n_threads that computes nothing, made if there is none; to be given back after the graph.
struct ggml_threadpool * h2o_take_threadpool(int n_threads);
void h2o_give_threadpool(struct ggml_threadpool * pool);

// Where the threads of a pool wait. They spin for some microseconds, then they sleep: at once while other programs want
// their CPUs. OMP_WAIT_POLICY, where the user has set it, says that they never do (active), or always (passive).
struct h2o_meeting;
struct h2o_meeting * h2o_meeting_new(int spin_us);
void h2o_meeting_free(struct h2o_meeting * meeting);

// Returns when n_threads have called it.
void h2o_meet(struct h2o_meeting * meeting, int n_threads);

// For loops that wait. False: it is time to sleep. `spin` starts as zeros.
struct h2o_spin {
    long long start; // microseconds, once there is a reason to ask for the time
    int       n;
};
int h2o_spins(struct h2o_meeting * meeting, struct h2o_spin * spin);

// Each thread calls it after a graph: was it preempted?
void h2o_meeting_observe(struct h2o_meeting * meeting);

#ifdef __cplusplus
}
#endif
