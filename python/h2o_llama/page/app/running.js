// The running request: one at a time.

let running = null; // its AbortController
let over = Promise.resolve();

export const isRunning = () => running !== null;

export function run(work) {
  running = new AbortController();
  over = work(running.signal).finally(() => { running = null; });
}

// Fulfilled when the request has ended and its part of the answer is kept.
export function stop() {
  running?.abort();
  return over;
}
