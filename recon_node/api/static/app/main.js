// The shell: the bar with the search, the views, and the one that the address names.

import { html, render, useEffect, useRef, useState } from "./html.js";
import { setToken, useData, useToken } from "./api.js";
import { count } from "./format.js";
import { Head } from "./parts.js";
import { go, href, useRoute } from "./router.js";
import { Overview } from "../views/overview.js";
import { Feed } from "../views/feed.js";
import { Streams } from "../views/streams.js";
import { Stream } from "../views/stream.js";
import { EventView } from "../views/event.js";
import { Models } from "../views/models.js";
import { Interests } from "../views/interests.js";
import { Peers } from "../views/peers.js";
import { Syncs } from "../views/syncs.js";
import { Undelivered } from "../views/undelivered.js";
import { Dags } from "../views/dags.js";
import { Dag } from "../views/dag.js";
import { Tangles } from "../views/tangles.js";
import { Tangle } from "../views/tangle.js";
import { Anchors } from "../views/anchors.js";
import { Search } from "../views/search.js";

const EVERY = 5;

/** The views of the menu: name, text, and what it counts. */
const MENU = [
  ["", "Overview"],
  ["feed", "Feed", (node) => node.head],
  ["streams", "Streams"],
  ["models", "Models"],
  ["tangles", "Tangles"],
  ["dags", "DAGs"],
  ["anchors", "Anchors"],
  ["interests", "Interests", (node) => node.interests?.length || null],
  ["peers", "Peers", (node) => (node.peers ?? []).filter((each) => each.connected).length],
  ["syncs", "Syncs"],
  ["undelivered", "Undelivered", (node) => node.waiting + node.pending],
];

function view({ parts: [name = "", id, root], query }, node) {
  switch (name) {
    case "": return html`<${Overview} node=${node} />`;
    case "feed": return html`<${Feed} key=${query.get("before")} query=${query} />`;
    case "streams": return id ? html`<${Stream} key=${id} id=${id} query=${query} />` : html`<${Streams} query=${query} />`;
    case "events": return html`<${EventView} key=${id} cid=${id} />`;
    case "models": return html`<${Models} query=${query} />`;
    case "interests": return html`<${Interests} node=${node} query=${query} />`;
    case "peers": return html`<${Peers} node=${node} />`;
    case "syncs": return html`<${Syncs} query=${query} />`;
    case "undelivered": return html`<${Undelivered} kind=${id} query=${query} />`;
    case "dags": return id ? html`<${Dag} key=${id} id=${id} query=${query} />` : html`<${Dags} query=${query} />`;
    case "tangles": return root ? html`<${Tangle} key=${id + root} name=${id} root=${root} />` : html`<${Tangles} query=${query} />`;
    case "anchors": return html`<${Anchors} query=${query} />`;
    case "search": return html`<${Search} query=${query} />`;
    default: return html`<${Head} title="No such page">Choose one from the menu.<//>`;
  }
}

function App() {
  const route = useRoute();
  const node = useData("/ceramic/recon", EVERY);
  const version = useData("/ceramic/version");
  const token = useToken();
  const at = route.parts.join("/");
  const first = useRef(true);
  useEffect(() => {
    const heading = document.querySelector("main h1");
    document.title = [heading?.textContent, "recon-node"].filter(Boolean).join(" · ");
    document.querySelector("nav.views [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    if (!first.current) heading?.focus({ preventScroll: true });
    if (!first.current) scrollTo(0, 0);
    first.current = false;
  }, [at]);
  return html`
    <header class="bar">
      <a class="brand" href="#/">recon-node</a>
      ${node.data && html`<span class="soft">${node.data.network}${version.data && " · " + version.data.version}</span>`}
      <span class=${"state small " + (node.error ? "bad" : "good")} role="status">${
        node.error ? (node.error.status === 401 ? "token required" : node.error.status ? "error" : "no answer") : node.data ? "live" : "connecting"}</span>
      <${SearchForm} query=${route.query.get("q") ?? ""} />
    </header>
    <nav class="views" aria-label="Views"><ul>${MENU.map(([name, text, number]) => html`<li key=${name}>
      <a href=${href(name ? [name] : [])} aria-current=${isAt(route, name) ? "page" : null}>${text}
        ${number && node.data && number(node.data) != null && html`<span class="count">${count(number(node.data))}</span>`}</a></li>`)}
      <li><a href="/docs">API</a></li>${!token.given && html`<li><a href="/metrics">Metrics</a></li>`}</ul></nav>
    <main id="main" tabindex="-1" data-view=${at}>
      ${token.wanted && html`<${TokenForm} wrong=${token.given && node.error?.message} />`}
      ${view(route, node)}
    </main>`;
}

const OF_STREAMS = ["streams", "events"];

function isAt({ parts: [at = ""] }, name) {
  return at === name || (name === "streams" && OF_STREAMS.includes(at));
}

function SearchForm({ query }) {
  const [text, setText] = useState(query);
  const field = useRef();
  useEffect(() => setText(query), [query]);
  useEffect(() => {
    const focus = (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.key !== "k") return;
      event.preventDefault();
      field.current.focus();
      field.current.select();
    };
    addEventListener("keydown", focus);
    return () => removeEventListener("keydown", focus);
  }, []);
  const search = (event) => {
    event.preventDefault();
    if (text.trim()) go(["search"], { q: text.trim() });
  };
  return html`<form role="search" onSubmit=${search}>
    <input ref=${field} type="search" aria-label="Search" aria-keyshortcuts="Control+K" title="Ctrl+K" placeholder="CID, StreamID, DID or model"
      autocomplete="off" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)} /></form>`;
}

function TokenForm({ wrong }) {
  const [text, setText] = useState("");
  const field = useRef();
  useEffect(() => field.current.focus(), []);
  const keep = (event) => {
    event.preventDefault();
    setToken(text.trim());
  };
  return html`<form class="box" onSubmit=${keep}>
    <label>This node requires its token
      <input ref=${field} type="password" autocomplete="off" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
    ${wrong && html`<p class="small bad" role="alert">${wrong}</p>`}
    <div><button>Use this token</button></div></form>`;
}

render(html`<${App} />`, document.getElementById("app"));
