// Anchoring: the trees whose roots this node writes to a chain, and the events in them.

import { html } from "../app/html.js";
import { useData, withQuery } from "../app/api.js";
import { count, moment } from "../app/format.js";
import { Badge, Copied, Facts, Head, Name, Table, Tabs, Trouble } from "../app/parts.js";
import { href } from "../app/router.js";

const EVERY = 5;
const STATES = { waiting: "Waiting", in_tree: "In a tree", anchored: "Anchored", covered: "Covered" };

export function Anchors({ query }) {
  const found = useData("/ceramic/anchors", EVERY);
  const { data } = found;
  const isOn = data && data.authority !== "off";
  return html`
    <${Head} title="Anchors">A time event proves that an event existed when its tree was written to a chain.<//>
    <${Trouble} of=${found} />
    ${data && !isOn && html`<p class="notice">This node does not anchor: events get their times from other nodes, or from none. The
      setting <code>anchor</code> turns it on: see docs/how-to/anchors.md.</p>`}
    ${isOn && html`<${Service} of=${data} /><${Requests} counts=${data.requests} state=${query.get("state")} />`}`;
}

function Service({ of }) {
  const trees = of.under_way ? [of.under_way, ...of.latest.filter((each) => each.root !== of.under_way.root)] : of.latest;
  return html`
    ${of.alarm && html`<p class="notice bad" role="status">${of.alarm}</p>`}
    <section class="box"><${Facts} of=${[
      ["Now", of.waits_for],
      ["Next tree", of.due_at == null ? "when an event waits" : moment(of.due_at)],
      ["Chain", of.chain_id + (of.authority === "development" ? ", a development clock of local networks" : "")],
      ["Contract", of.contract && html`<code>${of.contract}</code>`],
      ["Account", of.account && html`<${Copied} text=${of.account} />`],
      ["Balance", of.balance_wei && coins(of.balance_wei, of.coin)],
      ["Spent", of.spent_wei === "0" ? null : coins(of.spent_wei, of.coin)],
    ]} /></section>
    <${Table} caption="Latest trees" heads=${["written", "transaction", "#events", "#cost", "root"]} empty="None yet." rows=${trees.map((each) => ({
      key: each.root,
      cells: [each.block_time == null ? html`<${Badge} state="pending" />` : moment(each.block_time), html`<${Transaction} of=${each} />`,
        count(each.leaves), each.cost_wei ? coins(each.cost_wei, of.coin) : "–", html`<${Name} of=${each.root} />`],
    }))} />`;
}

/** A transaction, which leads to its page at the chain's explorer. */
export const Transaction = ({ of }) => of.tx_hash ? html`<${Name} of=${of.tx_hash} to=${of.explorer} />` : "–";

function Requests({ counts, state }) {
  const found = useData(withQuery("/ceramic/anchors/requests", { state, limit: 100 }), EVERY);
  const tabs = [["", "All", href(["anchors"])], ...Object.entries(STATES).map(([name, text]) =>
    [name, `${text} (${count(counts[name] ?? 0)})`, href(["anchors"], { state: name })])];
  return html`<${Tabs} label="Requests by state" now=${state ?? ""} of=${tabs} />
    <${Trouble} of=${found} />
    ${found.data && html`<${Table} caption="Requests, the latest first" heads=${["event", "state", "requested", "time event"]} empty="None."
      rows=${found.data.requests.map((each) => ({
        key: each.cid,
        cells: [html`<${Name} of=${each.cid} to=${href(["events", each.cid])} />`, STATES[each.state].toLowerCase(), moment(each.made_at),
          each.time_event ? html`<${Name} of=${each.time_event} to=${href(["events", each.time_event])} />` : ""],
      }))} />`}`;
}

/** Wei, as text, in the chain's coin. */
export const coins = (wei, coin) => Number(BigInt(wei) / 10n ** 9n) / 1e9 + " " + coin;
