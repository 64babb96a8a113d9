// The interests of this node.

import { html } from "../app/html.js";
import { Head, Name, Table, Trouble } from "../app/parts.js";
import { href } from "../app/router.js";

export function Interests({ node }) {
  const interests = node.data?.interests ?? [];
  return html`
    <${Head} title="Interests">What this node syncs with its peers. The page Peers shows what is common with each of them.<//>
    ${node.data ? html`<${Table} caption="This node's interests" heads=${["sort key", "sort value", "controller", "stream", "set by"]}
      empty="None: everything on the network is synced." rows=${interests.map((each) => ({
        key: JSON.stringify(each),
        cells: [each.sep, html`<${Name} of=${each.sepValue} to=${href(["streams"], each.sep === "model" ? { model: each.sepValue } : { sortKey: each.sep, sortValue: each.sepValue })} />`,
          each.controller ? html`<${Name} of=${each.controller} />` : each.controllers ? `hashes ${each.controllers}` : "any", each.streamId ? html`<${Name} of=${each.streamId} to=${href(["streams", each.streamId])} />` : "any",
          each.configured ? "settings" : "API"],
      }))} />` : html`<${Trouble} of=${node} />`}`;
}
