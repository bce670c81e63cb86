// Conversations and their documents, kept in the browser's database.
// A conversation there names its documents by their ids: several may have one.

const CONVERSATIONS = "conversations";
const DOCUMENTS = "documents";

let opening;

function database() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("h2o-llama", 1);
    request.onupgradeneeded = () => {
      for (const name of [CONVERSATIONS, DOCUMENTS]) request.result.createObjectStore(name, { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opening;
}

// Runs `work` on both stores. What it has written is there when the promise is fulfilled, all of it or nothing.
async function transact(mode, work) {
  const transaction = (await database()).transaction([CONVERSATIONS, DOCUMENTS], mode);
  return new Promise((resolve, reject) => {
    const request = work(transaction.objectStore(CONVERSATIONS), transaction.objectStore(DOCUMENTS));
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

// Not crypto.randomUUID: browsers have it only on pages of this machine or with TLS.
export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(36)).join("-");

export async function conversations() {
  const all = await transact("readonly", (conversations) => conversations.getAll());
  return all.sort((a, b) => b.changed - a.changed);
}

export const documents = () => transact("readonly", (_, documents) => documents.getAll());

// A conversation with its documents, or undefined.
export async function read(id) {
  const found = await transact("readonly", (conversations) => conversations.get(id));
  if (!found) return undefined;
  const requests = [];
  await transact("readonly", (_, documents) => { requests.push(...found.documents.map((id) => documents.get(id))); });
  return { ...found, documents: requests.map((request) => request.result) };
}

// `documents` are those of the conversation that may not be there yet.
export function write(conversation, documents) {
  return transact("readwrite", (conversations, store) => {
    for (const document of documents) store.put(document);
    conversations.put({ ...conversation, documents: conversation.documents.map(({ id }) => id) });
  });
}

export const remove = (id) => transact("readwrite", (conversations, documents) => {
  conversations.delete(id);
  prune(conversations, documents);
});

// Removes the documents that no conversation has.
function prune(conversations, documents) {
  const all = conversations.getAll();
  all.onsuccess = () => {
    const used = new Set(all.result.flatMap((conversation) => conversation.documents));
    const ids = documents.getAllKeys();
    ids.onsuccess = () => ids.result.filter((id) => !used.has(id)).forEach((id) => documents.delete(id));
  };
}
