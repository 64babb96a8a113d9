// Which parts of the key space interest this node, and which of its peers cover them.

import { html } from "../app/html.js";
import { useData } from "../app/api.js";
import { Ring, shareOf } from "../app/ring.js";
import { count } from "../app/format.js";
import { Head, Name, Table, Trouble, long } from "../app/parts.js";
import { href } from "../app/router.js";
import { METAMODEL } from "./streams.js";

const EVERY = 10;

export function Interests({ node, query }) {
  const found = useData("/ceramic/recon/coverage", EVERY);
  const chosen = query.get("value");
  const peer = query.get("peer");
  const link = (value) => href(["interests"], { value: value === chosen ? null : value, peer });
  const values = found.data?.sort_values ?? [];
  const interests = node.data?.interests ?? [];
  return html`
    <${Head} title="Interests">Keys are ordered by sort value, then by controller. Each segment of the ring is a sort value, and runs
      through its controllers; this node's interests are inside, those of its connected peers outside.<//>
    <${Trouble} of=${found} />
    ${found.data && html`<div class="split">
      <section class="box"><h2>Key space</h2><${Ring} values=${values} chosen=${chosen} peer=${peer} link=${link} label=${nameOf} />
        <p class="small"><span class="key own"></span>this node <span class="key peer"></span>${peer ? html`peer <${Name} of=${peer} />` : "peers, darker where more of them"}
          ${peer && html` <a href=${href(["interests"], { value: chosen })}>show all peers</a>`}</p>
        ${found.data.unknown.length > 0 && html`<p class="small soft">Of ${count(found.data.unknown.length)} connected peers, no interests are known yet.</p>`}
        ${found.data.left_out > 0 && html`<p class="small soft">${count(found.data.left_out)} sort values with fewer events are left out.</p>`}</section>
      <${Table} caption="Sort values" heads=${["sort value", "#events", "this node wants", "#peers", "who covers it"]}
        empty="There are no streams and no interests yet." rows=${values.map((each) => ({
          key: each.sort_key + each.sort_value,
          chosen: each.sort_value === chosen,
          cells: [html`<a href=${link(each.sort_value)} title=${each.sort_value}>${nameOf(each)}</a>`, count(each.events), wanted(each.own), count(each.peers.length),
            long(each.peers.slice(0, 8).map((one) => html`<${Name} of=${one.id} to=${href(["interests"], { value: chosen, peer: one.id })} />${part(one.arcs)} `))],
        }))} /></div>`}
    ${node.data && html`<${Table} caption="This node's interests" heads=${["sort key", "sort value", "controller", "stream", "set by"]}
      empty="None: everything on the network is synced." rows=${interests.map((each) => ({
        key: JSON.stringify(each),
        cells: [each.sep, html`<${Name} of=${each.sepValue} to=${href(["streams"], each.sep === "model" ? { model: each.sepValue } : { sortKey: each.sep, sortValue: each.sepValue })} />`,
          each.controller ? html`<${Name} of=${each.controller} />` : each.controllers ? `hashes ${each.controllers}` : "any", each.streamId ? html`<${Name} of=${each.streamId} to=${href(["streams", each.streamId])} />` : "any",
          each.configured ? "settings" : "API"],
      }))} />`}`;
}

function nameOf(value) {
  if (!value.sort_key) return "no sort key";
  if (value.sort_value === METAMODEL) return "models";
  if (value.name) return value.name;
  const end = value.sort_value.length > 14 ? "…" + value.sort_value.slice(-8) : value.sort_value;
  return value.sort_key === "model" ? end : value.sort_key + " = " + end;
}

const wanted = (arcs) => (!arcs.length ? html`<span class="soft">nothing</span>` : shareOf(arcs) > 0.999 ? "everything" : `${arcs.length} part${arcs.length > 1 ? "s" : ""}`);
const part = (arcs) => (shareOf(arcs) > 0.999 ? "" : html` <span class="soft">in part</span>`);
