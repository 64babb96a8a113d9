// The live tail of the feed, by long polls. What came is kept while the view is open; following can
// be paused, to read.

import { html, useEffect, useState } from "../app/html.js";
import { get, useToken } from "../app/api.js";
import { bytes, count, moment } from "../app/format.js";
import { Badge, Head, Name, Table, Trouble } from "../app/parts.js";
import { href } from "../app/router.js";

const KEPT = 200;
const FIRST = 50;
const WAIT = 25;
const PAUSE = 3000;

export function Feed() {
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
    ${events && html`<${Table} caption="Latest events" hideCaption heads=${["#position", "event", "kind", "stream", "#height", "#size", "anchored", "delivered"]}
      empty="The feed is empty. Events appear here as soon as they are delivered." rows=${events.map((each) => ({
        key: each.position,
        cells: [count(each.position), html`<${Name} of=${each.id} to=${href(["streams", each.init], { event: each.id })} />`, each.kind,
          html`<${Name} of=${each.init} to=${href(["streams", each.init])} />`, count(each.height), bytes(each.size),
          each.time == null ? "" : moment(each.time),
          html`${each.deliveredAt == null ? "" : moment(each.deliveredAt / 1000)} ${each.fault && html`<${Badge} state="badly signed" />`}`],
      }))} />`}`;
}

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
      const found = await get(`/ceramic/feed/events?details=true&limit=${KEPT}&wait=${wait}&resumeAt=${head}`, signal);
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
