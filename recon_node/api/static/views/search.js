// What was found for the text in the bar.

import { html, useEffect } from "../app/html.js";
import { useData, withQuery } from "../app/api.js";
import { counted } from "../app/format.js";
import { Badge, Head, Name, Table, Trouble } from "../app/parts.js";
import { href } from "../app/router.js";
import { ModelTable } from "./models.js";
import { StreamTable } from "./streams.js";

export function Search({ query }) {
  const text = query.get("q") ?? "";
  const found = useData(text && withQuery("/ceramic/search", { q: text, limit: 50 }));
  const { data } = found;
  const isEmpty = data && !Object.values(data).some((each) => each.length);
  const place = data && placeOf(text, data);
  useEffect(() => {
    if (place) location.replace(place);  // going back leads to where the search began
  }, [place]);
  return html`
    <${Head} title="Search"><code>${text}</code><//>
    ${text && html`<${Trouble} of=${found} />`}
    ${isEmpty && html`<p class="notice" role="status">Nothing here has that name. CIDs and StreamIDs are found by at least their first 10 characters,
      DIDs as a whole, and models by a part of their name.${text.startsWith("ba") && html` It may be the root of a <a href=${href(["dags", text])}>DAG</a>.`}</p>`}
    ${data?.controllers.map((each) => html`<p class="notice" key=${each.id}>
      <a href=${href(["streams"], { controller: each.id })}><code>${each.id}</code></a> controls ${counted(each.streams, "stream")} here.</p>`)}
    ${data?.streams.length > 0 && html`<h2>Streams</h2><${StreamTable} streams=${data.streams} caption="Streams" />`}
    ${data?.models.length > 0 && html`<h2>Models</h2><${ModelTable} models=${data.models} />`}
    ${data?.events.length > 0 && html`<h2>Events</h2><${Table} caption="Events" hideCaption heads=${["event", "kind", "state", "stream"]} empty=""
      rows=${data.events.map((each) => ({
        key: each.cid,
        cells: [html`<${Name} of=${each.cid} to=${each.stream ? href(["streams", each.stream], { event: each.cid }) : href(["events", each.cid])} />`,
          each.kind, html`<${Badge} state=${each.state} />`, each.stream ? html`<${Name} of=${each.stream} to=${href(["streams", each.stream])} />` : ""],
      }))} />`}`;
}

/** The view of what has just this id; null if that is nothing, or the text is not a whole id. */
function placeOf(text, { streams, events }) {
  if (streams.some((each) => each.id === text)) return href(["streams", text]);
  const event = events.find((each) => each.cid === text);
  if (!event) return null;
  return event.stream ? href(["streams", event.stream], { event: text }) : href(["events", text]);
}
