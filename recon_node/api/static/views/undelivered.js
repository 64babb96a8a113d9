// What cannot be delivered, and why: what waits, what is pending, what was refused.

import { html } from "../app/html.js";
import { api, useData, withQuery } from "../app/api.js";
import { count, counted, moment } from "../app/format.js";
import { Badge, Head, Name, Pager, Table, Tabs, Trouble, long } from "../app/parts.js";
import { href } from "../app/router.js";

const EVERY = 5;
const PAGE = 50;
const KINDS = {
  waiting: "An event waits while something that it builds on is missing here. Peers that have it send it with the next sync. A badly signed event waits until a valid data event covers it.",
  pending: "An event is pending until the anchor of a time event has been looked up on its chain: its own, or one that it builds on.",
  refused: "Events of peers that were found wrong for good. They are not fetched again; the latest 65,536 are remembered.",
};

export function Undelivered({ kind, query }) {
  const now = kind in KINDS ? kind : "waiting";
  const after = query.get("after");
  const counts = useData("/ceramic/undelivered", EVERY);
  const found = useData(withQuery(api`/ceramic/undelivered/${now}`, { after, limit: PAGE }), after ? 0 : EVERY);
  const number = (name) => (counts.data ? ` (${count(counts.data[name])})` : "");
  return html`
    <${Head} title="Not delivered, and why">${KINDS[now]}<//>
    <${Tabs} label="Why it is not delivered" now=${now} of=${Object.keys(KINDS).map((name) => [name, name[0].toUpperCase() + name.slice(1) + number(name), href(["undelivered", name])])} />
    ${now === "pending" && counts.data && html`<${Chains} of=${counts.data.chains} />`}
    <${Trouble} of=${found} />
    ${found.data && (now === "refused" ? html`<${Refused} events=${found.data.events} />` : html`<${Held} events=${found.data.events} kind=${now} />`)}
    ${found.data && html`<${Pager} parts=${["undelivered", now]} after=${after} next=${found.data.next} />`}`;
}

const Chains = ({ of }) => of.map((each) => html`
  <p class=${"notice " + (each.has_provider ? "" : "warn")} key=${each.chain_id}>
    <strong>${each.chain_id}</strong>: ${counted(each.proofs, "lookup")} to be made.
    ${each.has_provider ? ` The next is due at ${moment(each.next_due)}.`
      : " This node has no endpoint for the chain, so nothing is looked up: set chain_rpc."}</p>`);

const Held = ({ events, kind }) => html`<${Table} caption=${"Events that are " + kind} hideCaption
  heads=${["event", "why", "stream", "kind", "#height"]} empty=${"No events are " + kind + "."} rows=${events.map((each) => ({
    key: each.cid + each.height,
    cells: [html`<${Name} of=${each.cid} to=${href(["events", each.cid])} />`, long(html`${each.fault && html`<div class="bad">badly signed, and no valid data event covers it: ${each.fault}</div>`}
        ${each.builds_on.map((one) => html`<div>builds on <${Name} of=${one.cid} to=${href(["events", one.cid])} /> <${Badge} state=${one.state} /></div>`)}
        ${each.lookup && html`<${Lookup} of=${each.lookup} />`}`),
      each.stream ? html`<${Name} of=${each.stream} to=${href(["streams", each.stream], { event: each.cid })} />` : html`<span class="soft">its init event is missing</span>`,
      each.kind, count(each.height)],
  }))} />`;

function Lookup({ of }) {
  const tried = of.tries ? `, ${counted(of.tries, "lookup")} failed` : "";
  const absent = of.not_found ? `; ${of.not_found === 1 ? "once" : of.not_found + " times"} the chain did not have the transaction` : "";
  return html`<div>anchor on ${of.chain_id} not looked up${tried}${absent}; ${!of.has_provider
    ? html`<span class="bad">no endpoint for this chain</span>` : of.due == null ? "not queued yet" : "due " + moment(of.due)}
    <div class="small soft">transaction <code>${of.transaction}</code></div></div>`;
}

const Refused = ({ events }) => html`<${Table} caption="Refused events" hideCaption heads=${["event", "reason", "wrong is", "#height"]}
  empty="No event of a peer was refused." rows=${events.map((each) => ({
    key: each.event_id,
    cells: [html`<${Name} of=${each.cid} title=${each.cid + ", EventId " + each.event_id} />`, long(each.reason),
      each.inherent ? "the event" : "its EventId", count(each.height)],
  }))} />`;
