// The models that are here, and how much there is of each.

import { html } from "../app/html.js";
import { useData, withQuery } from "../app/api.js";
import { count, counted, named } from "../app/format.js";
import { Head, Name, Pager, Table, Trouble, long } from "../app/parts.js";
import { href } from "../app/router.js";

const PAGE = 50;
const EVERY = 10;

export function Models({ query }) {
  const after = query.get("after");
  const found = useData(withQuery("/ceramic/models", { after, limit: PAGE }), after ? 0 : EVERY);
  return html`
    <${Head} title="Models">The latest come first.${found.data && " " + counted(found.data.total, "model") + "."}<//>
    <${Trouble} of=${found} />
    ${found.data && html`<${ModelTable} models=${found.data.models} />
      <${Pager} parts=${["models"]} after=${after} next=${found.data.next} />`}`;
}

/** A table of models, as the API lists them. */
export const ModelTable = ({ models }) => html`
  <${Table} caption="Models" hideCaption heads=${["name", "model", "controller", "#streams", "#events"]}
    empty="No models here. Documents can be here without their models: add an interest in kh4q0ozorrgaq2mezktnrmdwleo1d to sync all models."
    rows=${models.map((each) => ({
      key: each.id,
      cells: [long(html`<a href=${href(["streams"], { model: each.id })}>${named(each.name)}</a>`),
        html`<${Name} of=${each.id} to=${href(["streams", each.id])} />`,
        html`<${Name} of=${each.controller} to=${href(["streams"], { controller: each.controller })} />`,
        count(each.streams), count(each.events)],
    }))} />`;
