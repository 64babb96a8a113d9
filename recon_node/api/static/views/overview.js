// The node at a glance: its numbers now.

import { html } from "../app/html.js";
import { bytes, count } from "../app/format.js";
import { Copied, Facts, Head, Numbers, Trouble } from "../app/parts.js";

export function Overview({ node }) {
  const { data } = node;
  return html`
    <${Head} title="Overview" />
    ${data ? html`<${Now} node=${data} />` : html`<${Trouble} of=${node} />`}
    ${data && html`<${Self} node=${data} />`}`;
}

function Now({ node }) {
  const connected = (node.peers ?? []).filter((each) => each.connected).length;
  return html`
    <${Numbers} of=${[
      ["events held", count(node.events)],
      ["in the feed", count(node.head)],
      ["pending", count(node.pending), node.pending ? "warn" : ""],
      ["waiting", count(node.waiting), node.waiting ? "warn" : ""],
      ["peers connected", count(connected), connected ? "" : "warn"],
      ["peers known", count((node.peers ?? []).length)],
    ]} />
    ${node.damaged > 0 && html`<p class="notice bad">${count(node.damaged)} events are damaged in the log, and are
      being fetched again from peers: see docs/operations.md.</p>`}
    ${node.disk?.failure && html`<p class="notice bad">Nothing could be written when last tried: ${node.disk.failure}</p>`}
    ${node.disk?.is_short && html`<p class="notice bad">The disk is nearly full: the node takes no events from peers
      (keep_free).</p>`}
    ${node.anchoring_alarm && html`<p class="notice bad">Anchoring: ${node.anchoring_alarm}</p>`}`;
}

const Self = ({ node }) => html`<section class="box"><h2>This node</h2><${Facts} of=${[
  ["Peer ID", node.peer_id && html`<${Copied} text=${node.peer_id} />`],
  ["Addresses", node.addresses?.length ? node.addresses.map((each) => html`<div><code>${each}</code></div>`) : null],
  ["Interests", node.interests.length ? html`<a href="#/interests">${count(node.interests.length)}</a>` : "none: everything on the network"],
  ["Write policy", policy(node.write_policy)],
  ["Disk", node.disk && `${bytes(node.disk.free)} free, ${bytes(node.disk.keep_free)} kept free`],
  ["Epoch of the log", html`<code>${node.epoch}</code>`],
  ["Sha256a of all keys", html`<code>${node.sha256a}</code>`],
]} /></section>`;

function policy(given) {
  if (!given) return null;
  const set = Object.entries(given).filter(([, values]) => Array.isArray(values) && values.length);
  if (!set.length) return null;
  const lists = set.map(([name, values]) => name.replace("_", " ") + ": " + values.join(", "));
  return lists.join("; ") + " (refused: " + count(given.refused) + ")";
}
