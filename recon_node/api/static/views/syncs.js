// The latest syncs, and, kept for longer, those that moved events.

import { html } from "../app/html.js";
import { api, useData } from "../app/api.js";
import { bytes, count, moment, span } from "../app/format.js";
import { Head, Name, Table, Tabs, Trouble, long } from "../app/parts.js";
import { href } from "../app/router.js";

const EVERY = 5;

export function Syncs({ query }) {
  const of = query.get("of") === "all" ? "all" : "transfers";
  const found = useData(api`/ceramic/recon/syncs?of=${of}&limit=100`, EVERY);
  return html`
    <${Head} title="Syncs">The latest first. Most syncs find nothing to do, so those that moved events are kept apart: the latest 500 since the start.<//>
    <${Tabs} label="Which syncs" now=${of} of=${[["transfers", "Moved events", href(["syncs"])], ["all", "All", href(["syncs"], { of: "all" })]]} />
    <${Trouble} of=${found} />
    ${found.data && html`<${Table} caption="Syncs" hideCaption
      heads=${["ended", "outcome", "peer", "role", "recon", "#events in", "#events out", "#bytes in", "#bytes out", "#rounds", "#took"]}
      empty=${of === "all" ? "None yet." : "None yet has moved events."} rows=${found.data.syncs.map((each) => ({
        key: [each.peer, each.role, each.finished_at].join(),
        cells: [moment(each.finished_at),
          long(html`<span class=${each.outcome.startsWith("agreed") ? "good" : each.outcome === "no common interest" ? "soft" : "bad"}>${each.outcome}</span>`),
          html`<${Name} of=${each.peer} />`, each.role, each.protocol.split("/").slice(3).join("/"),
          count(each.events_received), count(each.events_sent), bytes(each.bytes_received + each.event_bytes_received),
          bytes(each.bytes_sent + each.event_bytes_sent), count(each.rounds), span(each.seconds)],
      }))} />`}`;
}
