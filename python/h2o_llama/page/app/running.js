// The answer that comes: there is one at a time.

let running = null; // its AbortController
let over = Promise.resolve();

export const isRunning = () => running !== null;

export function run(work) {
  running = new AbortController();
  over = work(running.signal).finally(() => { running = null; });
}

// Fulfilled when the answer has ended and is kept as far as it came.
export function stop() {
  running?.abort();
  return over;
}
