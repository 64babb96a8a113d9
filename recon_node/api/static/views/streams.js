// Lists of streams: all, those of a model or another sort value, those of a controller.

import { html } from "../app/html.js";
import { api, useData, withQuery } from "../app/api.js";
import { count, counted, moment, named } from "../app/format.js";
import { Field, Head, Name, Pager, Table, Trouble, long } from "../app/parts.js";
import { go, href } from "../app/router.js";

const PAGE = 50;
const EVERY = 10;
const METAMODEL = "kh4q0ozorrgaq2mezktnrmdwleo1d";

export function Streams({ query }) {
  const filter = Object.fromEntries(["model", "sortKey", "sortValue", "controller"].map((name) => [name, query.get(name)]));
  const after = query.get("after");
  const found = useData(withQuery("/ceramic/streams", { ...filter, after, limit: PAGE }), after ? 0 : EVERY);
  return html`
    <${Head} title="Streams">The latest come first.${found.data && " " + counted(found.data.total, "stream") + "."}<//>
    <${Filter} filter=${filter} />
    <${Trouble} of=${found} />
    ${found.data && html`<${StreamTable} streams=${found.data.streams} caption="Streams" />
      <${Pager} parts=${["streams"]} params=${filter} after=${after} next=${found.data.next} />`}`;
}

function Filter({ filter }) {
  const apply = (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    go(["streams"], given);
  };
  const isSet = Object.values(filter).some(Boolean);
  return html`<details class="box" open=${isSet}><summary>Filter</summary><form onSubmit=${apply}><div class="filters">
    <${Field} label="Model (StreamID)"><input type="text" name="model" value=${filter.model ?? ""} spellcheck="false" /><//>
    <${Field} label="Controller (DID)"><input type="text" name="controller" value=${filter.controller ?? ""} spellcheck="false" /><//>
    <${Field} label="Sort key"><input type="text" name="sortKey" value=${filter.sortKey ?? ""} spellcheck="false" /><//>
    <${Field} label="Sort value"><input type="text" name="sortValue" value=${filter.sortValue ?? ""} spellcheck="false" /><//>
    </div><div class="row"><button>Apply</button>
    ${isSet && html`<a class="button" href=${href(["streams"])}>Show all</a>`}</div></form></details>`;
}

/** A table of streams, as the API lists them. */
export const StreamTable = ({ streams, caption }) => html`
  <${Table} caption=${caption} hideCaption heads=${["stream", "content", "of", "controller", "#events", "changed"]}
    empty="No such streams here." rows=${streams.map((each) => ({
      key: each.id,
      cells: [html`<${Name} of=${each.id} to=${href(["streams", each.id])} />`, html`<${Preview} key=${each.position} id=${each.id} />`,
        long(html`<${SortValue} of=${each} />`),
        html`<${Name} of=${each.controller} to=${href(["streams"], { controller: each.controller })} />`,
        count(each.events), each.delivered_at == null ? "" : moment(each.delivered_at / 1000)],
    }))} />`;

/** The beginning of a stream's content at its tip, and whether it has diverged. */
function Preview({ id }) {
  const state = useData(api`/ceramic/streams/${id}/preview`);
  if (!state.data) return html`<span class="soft">${state.error ? "–" : "…"}</span>`;
  const text = state.data.content;
  return html`<span class="preview">${text}</span>${state.data.diverged && html` <span class="badge warn">diverged</span>`}`;
}

/** What a stream belongs to: a model by its name, or a sort value. */
export function SortValue({ of: stream }) {
  const { sort_key: key, sort_value: value } = stream;
  if (!key) return html`<span class="soft">none</span>`;
  if (value === METAMODEL) return html`<a href=${href(["models"])}>model</a>${stream.name && " " + stream.name}`;
  if (key === "model") {
    const to = href(["streams"], { model: value });
    return stream.model_name ? html`<a href=${to} title=${value}>${named(stream.model_name)}</a>` : html`<${Name} of=${value} to=${to} />`;
  }
  return html`${key} = <${Name} of=${value} to=${href(["streams"], { sortKey: key, sortValue: value })} />`;
}
