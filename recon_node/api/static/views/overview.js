// The node at a glance: its numbers now, and in the last hour.

import { html } from "../app/html.js";
import { useData } from "../app/api.js";
import { Chart, rates } from "../app/chart.js";
import { bytes, count, span } from "../app/format.js";
import { Copied, Facts, Head, Numbers, Trouble } from "../app/parts.js";

const EVERY = 10;

export function Overview({ node }) {
  const samples = useData("/ceramic/recon/samples", EVERY);
  const { data } = node;
  return html`
    <${Head} title="Overview" />
    ${data ? html`<${Now} node=${data} />` : html`<${Trouble} of=${node} />`}
    ${samples.data ? html`<${Charts} of=${samples.data} />` : !node.error && html`<${Trouble} of=${samples} />`}
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
      being fetched again from peers: see docs/operations.md.</p>`}`;
}

function Charts({ of }) {
  const times = of.time;
  if (times.length < 2) return html`<p class="notice soft">The charts begin with the second sample: there is one every ${of.interval} seconds.</p>`;
  const perMinute = (totals) => rates(times, totals).map((rate) => rate * 60);
  const whole = (value) => count(Math.round(value));
  return html`<div class="grid">
    <${Chart} title="Events" times=${times} show=${whole} isWhole
      lines=${[{ label: "held", values: of.events }, { label: "delivered", values: of.delivered }]} />
    <${Chart} title="Not delivered" times=${times} show=${whole} isWhole
      lines=${[{ label: "pending", values: of.pending }, { label: "waiting", values: of.waiting }]} />
    <${Chart} title="Syncs a minute" times=${times} show=${whole} isWhole
      lines=${[{ label: "all", values: perMinute(of.syncs) }, { label: "failed", values: perMinute(of.failed_syncs) }]} />
    <${Chart} title="Bytes a second" times=${times} show=${bytes}
      lines=${[{ label: "received", values: rates(times, of.bytes_received) }, { label: "sent", values: rates(times, of.bytes_sent) }]} />
    <${Chart} title="Longest hold of the event loop" times=${times} show=${span}
      lines=${[{ label: "lag", values: of.lag }]} />
    <${Chart} title="Peers connected" times=${times} show=${whole} isWhole
      lines=${[{ label: "peers", values: of.peers }]} />
  </div>`;
}

const Self = ({ node }) => html`<section class="box"><h2>This node</h2><${Facts} of=${[
  ["Peer ID", node.peer_id && html`<${Copied} text=${node.peer_id} />`],
  ["Addresses", node.addresses?.length ? node.addresses.map((each) => html`<div><code>${each}</code></div>`) : null],
  ["Write policy", policy(node.write_policy)],
  ["Epoch of the log", html`<code>${node.epoch}</code>`],
  ["Hash of all keys", html`<code>${node.sha256a}</code>`],
]} /></section>`;

function policy(given) {
  if (!given) return null;
  const set = Object.entries(given).filter(([, values]) => Array.isArray(values) && values.length);
  if (!set.length) return null;
  const lists = set.map(([name, values]) => name.replace("_", " ") + ": " + values.join(", "));
  return lists.join("; ") + " (refused: " + count(given.refused) + ")";
}
