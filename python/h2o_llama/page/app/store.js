// Conversations and their documents in the browser's database. There a conversation has the ids of its documents, since
// several conversations may share one.

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

// Runs `work` on both stores. The promise is fulfilled when everything is written, and rejected when nothing is.
async function transact(mode, work) {
  const transaction = (await database()).transaction([CONVERSATIONS, DOCUMENTS], mode);
  return new Promise((resolve, reject) => {
    const request = work(transaction.objectStore(CONVERSATIONS), transaction.objectStore(DOCUMENTS));
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

// Not crypto.randomUUID: it needs TLS or a page of this machine.
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

// `documents` are the conversation's documents that may not be in the database yet.
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

// Removes documents without a conversation.
function prune(conversations, documents) {
  const all = conversations.getAll();
  all.onsuccess = () => {
    const used = new Set(all.result.flatMap((conversation) => conversation.documents));
    const ids = documents.getAllKeys();
    ids.onsuccess = () => ids.result.filter((id) => !used.has(id)).forEach((id) => documents.delete(id));
  };
}
