// Conversations in the browser's database, with their documents.

let opening;

// The promise is fulfilled when everything is written, and rejected when nothing is.
async function transact(mode, work) {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("h2o-llama", 2);
    request.onupgradeneeded = () => {
      for (const name of [...request.result.objectStoreNames]) request.result.deleteObjectStore(name);
      request.result.createObjectStore("conversations", { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  const transaction = (await opening).transaction("conversations", mode);
  return new Promise((resolve, reject) => {
    const request = work(transaction.objectStore("conversations"));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

// Not crypto.randomUUID: it needs TLS or a page of this machine.
export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(36)).join("-");

export const all = async () =>
  (await transact("readonly", (conversations) => conversations.getAll())).sort((a, b) => b.changed - a.changed);
export const read = (id) => transact("readonly", (conversations) => conversations.get(id));
export const write = (conversation) => transact("readwrite", (conversations) => conversations.put(conversation));
export const remove = (id) => transact("readwrite", (conversations) => conversations.delete(id));
