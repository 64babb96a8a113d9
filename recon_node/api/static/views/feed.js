// The live tail of the feed, by long polls, and its past in pages. What came is kept while the view is
// open; following can be paused, to read.

import { html, useEffect, useState } from "../app/html.js";
import { api, get, useData, useToken } from "../app/api.js";
import { bytes, count, moment } from "../app/format.js";
import { Badge, Head, Name, Table, Trouble } from "../app/parts.js";
import { href } from "../app/router.js";

const KEPT = 200;
const FIRST = 50;
const WAIT = 25;
const PAUSE = 3000;

export function Feed({ query }) {
  const before = query.get("before");
  return before ? html`<${Earlier} before=${Number(before)} />` : html`<${Live} />`;
}

function Live() {
  const [state, setState] = useState({ events: null, head: null, error: null });
  const [isPaused, setPaused] = useState(false);
  const token = useToken();
  useEffect(() => {
    if (isPaused) return undefined;
    const abort = new AbortController();
    follow(state.head, abort.signal, setState);
    return () => abort.abort();
  }, [isPaused, token.version]);
  const { events, error } = state;
  return html`
    <div class="row apart"><${Head} title="Feed">Events in the order in which this node delivered them, the latest first.<//>
      <button aria-pressed=${String(isPaused)} onClick=${() => setPaused(!isPaused)}>${isPaused ? "Follow" : "Pause"}</button></div>
    <${Trouble} of=${{ error, loading: !events && !error }} />
    ${events && html`<${Events} events=${events} />`}
    ${events?.length > 0 && html`<${Places} first=${events.at(-1).position} />`}`;
}

/** A page of the feed's past; it stays as it is. */
function Earlier({ before }) {
  const after = Math.max(0, before - 1 - FIRST);
  const found = useData(api`/ceramic/feed/events?details=true&streams=true&limit=${Math.min(FIRST, before - 1)}&resumeAt=${after}`);
  return html`
    <${Head} title="Feed">Events before position ${count(before)}, the latest first.<//>
    <${Trouble} of=${found} />
    ${found.data && html`<${Events} events=${[...found.data.events].reverse()} /><${Places} first=${after + 1} last=${before - 1} />`}`;
}

/** Where the feed goes on. */
const Places = ({ first, last }) => html`<nav class="row" aria-label="Pages">
  ${first > 1 && html`<a class="button" href=${href(["feed"], { before: first })}>Earlier</a>`}
  ${last && html`<a class="button" href=${href(["feed"], { before: last + 1 + FIRST })}>Later</a><a class="button" href=${href(["feed"])}>Latest</a>`}</nav>`;

const Events = ({ events }) => html`<${Table} caption="Events" hideCaption heads=${["#position", "event", "kind", "stream", "#height", "#size", "anchored", "delivered"]}
  empty="No events. They appear here as soon as they are delivered." rows=${events.map((each) => ({
    key: each.position,
    cells: [count(each.position), html`<${Name} of=${each.id} to=${href(["streams", each.stream], { event: each.id })} />`, each.kind,
      html`<${Name} of=${each.stream} to=${href(["streams", each.stream])} />`, count(each.height), bytes(each.size),
      each.time == null ? "" : moment(each.time),
      html`${each.deliveredAt == null ? "" : moment(each.deliveredAt / 1000)} ${each.fault && html`<${Badge} state="badly signed" />`}`],
  }))} />`;

/** Ask for what is new, forever; wait while the tab is hidden. */
async function follow(from, signal, setState) {
  let head = from;
  let wait = 0;  // the first answer comes at once, even if the feed is empty
  while (!signal.aborted) {
    await visible(signal);
    try {
      if (head === null) {
        const end = await get("/ceramic/feed/resumeToken", signal);
        head = Math.max(0, Number(end.resumeToken) - FIRST);
      }
      const found = await get(api`/ceramic/feed/events?details=true&streams=true&limit=${KEPT}&wait=${wait}&resumeAt=${head}`, signal);
      head = Number(found.resumeToken);
      wait = WAIT;
      const fresh = found.events.reverse();
      setState((old) => ({ events: [...fresh, ...(old.events ?? [])].slice(0, KEPT), head, error: null }));
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 410) head = null;  // the log is another one: begin again at its end
      setState((old) => ({ ...old, error }));
      await new Promise((resume) => setTimeout(resume, PAUSE));
    }
  }
}

function visible(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resume) => document.addEventListener("visibilitychange", resume, { once: true, signal }));
}
