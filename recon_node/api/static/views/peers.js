// The peers that the node knows, connected ones first.

import { html } from "../app/html.js";
import { count, moment, span } from "../app/format.js";
import { Badge, Head, Name, Table, Trouble, long } from "../app/parts.js";

const MAX_ROWS = 200;

export function Peers({ node }) {
  if (!node.data) return html`<${Head} title="Peers" /><${Trouble} of=${node} />`;
  const peers = node.data.peers ?? [];
  const connected = peers.filter((each) => each.connected);
  return html`
    <${Head} title="Peers">${count(connected.length)} connected of ${count(peers.length)} known. The score is how likely the next sync is
      with this peer: low latency, many common keys and having been behind raise it, failures lower it.<//>
    <${Table} caption="Connected" heads=${["peer", "recon versions", "#latency", "#behind", "#score", "last sync", "shared interests", "#covers", "#failures", "address"]}
      empty="None. Connect one with: recon-node peers add MULTIADDR" rows=${connected.slice(0, MAX_ROWS).map((each) => ({
        key: each.id,
        cells: [html`<${Name} of=${each.id} />`, each.speaks.join(", ").replaceAll("recon/", ""), span(each.latency),
          ((each.behind ?? 0) * 100).toFixed(0) + " %", each.score == null ? "–" : (each.score * 100).toFixed(0) + " %", moment(each.last_sync), long(shared(each)),
          each.covers == null ? "–" : (each.covers * 100).toFixed(0) + " %", count(each.failures), long(html`<code>${each.addresses[0] ?? ""}</code>`)],
      }))} />
    <${Table} caption="Known, not connected" heads=${["peer", "state", "last sync", "#failures", "address"]} empty="None."
      rows=${peers.filter((each) => !each.connected).slice(0, MAX_ROWS).map((each) => ({
        key: each.id,
        cells: [html`<${Name} of=${each.id} />`, html`<${Badge} state="known" />`, moment(each.last_sync), count(each.failures),
          long(html`<code>${each.addresses[0] ?? ""}</code>`)],
      }))} />`;
}

function shared(peer) {
  if (peer.shares == null) return html`<span class="soft">not known</span>`;
  if (!peer.shares.length) return peer.covers === 0 ? "none" : "everything that it wants";
  return html`<span class="small mono">${peer.shares.join(", ")}</span>`;
}
