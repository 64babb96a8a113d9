// The initiator of a negentropy reconciliation, played by the npm package nostr-tools.
//
//     node nostr_tools.mjs NIP77_MODULE ITEMS_FILE
//
// ITEMS_FILE holds 40 bytes an item: a big-endian 64-bit timestamp and an id. Messages go out and
// come in as lines of hex. The last line out is JSON: the differences found, and the CPU seconds
// that the reconciliation took, the loading of the items left out.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [modulePath, itemsFile] = process.argv.slice(2);
const { Negentropy, NegentropyStorageVector } = await import(pathToFileURL(modulePath).href);

const items = readFileSync(itemsFile);
const storage = new NegentropyStorageVector();
for (let at = 0; at < items.length; at += 40) {
  const timestamp = Number(items.readBigUInt64BE(at));
  storage.insert(timestamp, items.toString("hex", at + 8, at + 40));
}
storage.seal();

const started = process.cpuUsage();
const negentropy = new Negentropy(storage);
let found = 0;
const count = () => { found += 1; };

console.log(negentropy.initiate());
for await (const line of createInterface({ input: process.stdin })) {
  const message = negentropy.reconcile(line, count, count);
  if (message === null) break;
  console.log(message);
}
const spent = process.cpuUsage(started);
console.log(JSON.stringify({ found, cpu_s: (spent.user + spent.system) / 1e6 }));
process.stdin.destroy();
