#pragma once

// The threads of the CPU backend, without OpenMP: pools that outlive a graph, and how their threads wait for each other.

#ifdef __cplusplus
extern "C" {
#endif

// A pool of n_threads, or less than twice as many, that computes nothing. It is made if there is none, and given back with
// the number that it has.
struct ggml_threadpool * h2o_take_threadpool(int n_threads);
void h2o_give_threadpool(struct ggml_threadpool * pool, int n_threads);

// Threads that wait spin for some microseconds, then they sleep: at once while other programs want their CPUs.
// OMP_WAIT_POLICY, where the user has set it, says that they never sleep (active), or always (passive).
struct h2o_waiting;
struct h2o_waiting * h2o_waiting_new(int spin_us);
void h2o_waiting_free(struct h2o_waiting * waiting);

// Until an atomic int is no longer `old`. The thread that changes it then calls h2o_wake.
void h2o_wait(struct h2o_waiting * waiting, const void * value, int old);
void h2o_wake(struct h2o_waiting * waiting);

// A turn of a loop that waits. False: it is time to sleep. `spin` starts as zeros.
struct h2o_spin { long long start; int n; };
int h2o_spins(struct h2o_waiting * waiting, struct h2o_spin * spin);

// Each thread calls it after a graph: was it preempted?
void h2o_observe(struct h2o_waiting * waiting);

#ifdef __cplusplus
}
#endif
