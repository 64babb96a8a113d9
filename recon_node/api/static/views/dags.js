// The DAGs of which something is here, and the identifiers under which something was published.

import { html } from "../app/html.js";
import { useData, withQuery } from "../app/api.js";
import { count, moment } from "../app/format.js";
import { Head, Name, Pager, Table, Tabs, Trouble } from "../app/parts.js";
import { href } from "../app/router.js";

const PAGE = 50;
const EVERY = 10;

export function Dags({ query }) {
  const isPublishes = query.get("of") === "publishes";
  const after = query.get("after");
  const path = isPublishes ? "/ceramic/dag/publish" : "/ceramic/dag";
  const found = useData(withQuery(path, { after, limit: PAGE }), after ? 0 : EVERY);
  const params = { of: isPublishes ? "publishes" : null };
  return html`
    <${Head} title="DAGs and publishes">Files, directories and other data, by the CIDs of their roots; and identifiers that resolve to them.<//>
    <${Tabs} label="DAGs or publishes" now=${isPublishes ? "publishes" : "dags"}
      of=${[["dags", "DAGs", href(["dags"])], ["publishes", "Publishes", href(["dags"], { of: "publishes" })]]} />
    <${Trouble} of=${found} />
    ${found.data?.dags && html`<${Table} caption="DAGs" hideCaption heads=${["root", "#shards", "#operations"]}
      empty="None here. Add one with: recon-node dag push PATH" rows=${found.data.dags.map((each) => ({
        key: each.root,
        cells: [html`<${Name} of=${each.root} to=${href(["dags", each.root])} />`, count(each.shards), count(each.replicas)],
      }))} />`}
    ${found.data?.identifiers && html`<${Table} caption="Publishes" hideCaption heads=${["identifier", "#publishes", "#refused", "latest read"]}
      empty="None here. Publish a DAG with: recon-node dag publish CID" rows=${found.data.identifiers.map((each) => ({
        key: each.id,
        cells: [html`<${Name} of=${each.id} to=${href(["dags", each.id])} />`, count(each.publishes), count(each.refused), moment(each.judged)],
      }))} />`}
    ${found.data && html`<${Pager} parts=${["dags"]} params=${params} after=${after} next=${found.data.next} />`}`;
}
