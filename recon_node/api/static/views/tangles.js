// The tangles that documents here name: threads of many authors.

import { html } from "../app/html.js";
import { useData, withQuery } from "../app/api.js";
import { count, named } from "../app/format.js";
import { Head, Name, Pager, Table, Trouble, long } from "../app/parts.js";
import { href } from "../app/router.js";

const PAGE = 50;
const EVERY = 10;

export function Tangles({ query }) {
  const after = query.get("after");
  const found = useData(withQuery("/ceramic/tangles", { after, limit: PAGE }), after ? 0 : EVERY);
  return html`
    <${Head} title="Tangles">Documents of many authors that refer to one another, such as the messages of a thread.<//>
    <${Trouble} of=${found} />
    ${found.data && html`<${Table} caption="Tangles" hideCaption heads=${["name", "starts with", "#documents"]}
      empty="None here. Start one with a document whose content.tangles has its name: see docs/tangles.md." rows=${found.data.tangles.map((each) => ({
        key: each.init + each.name,
        cells: [long(each.root ? html`<a href=${href(["tangles", each.name, each.root])}>${named(each.name)}</a>` : named(each.name)),
          each.root ? html`<${Name} of=${each.root} to=${href(["streams", each.root])} />` : html`<${Name} of=${each.init} /> <span class="warn">not here</span>`,
          count(each.candidates)],
      }))} />
      <${Pager} parts=${["tangles"]} after=${after} next=${found.data.next} />`}`;
}
