// A stream: its content, its drawing, why its tip is its tip, and each of its events.

import { html, useEffect, useRef } from "../app/html.js";
import { api, useData } from "../app/api.js";
import { Drawing } from "../app/drawing.js";
import { count, fromMultibase, moment, named, parseJson } from "../app/format.js";
import { Json } from "../app/json.js";
import { Badge, Copied, Facts, Head, Name, Table, Trouble, long, names } from "../app/parts.js";
import { go, href } from "../app/router.js";
import { Transaction } from "./anchors.js";
import { Blocks } from "./event.js";
import { SortValue } from "./streams.js";

const MAX_ROWS = 200;

export function Stream({ id, query }) {
  const everything = query.get("all") === "true";
  const picture = useData(api`/ceramic/streams/${id}/picture?all=${everything}`);
  const listed = useData(picture.data && api`/ceramic/streams/${picture.data.id}/events`);
  const chosen = query.get("event");
  const choose = (cid) => go(["streams", id], { event: cid, all: everything || null });
  const shown = useRef(chosen);
  useEffect(() => {  // what is chosen in the drawing or the table comes into view
    const place = document.querySelector("section.chosen");
    if (chosen !== shown.current && !place?.contains(document.activeElement)) place?.querySelector("h2").focus();
    shown.current = chosen;
  }, [chosen]);
  if (!picture.data) return html`<${Head} title="Stream" /><p><code>${id}</code></p><${Trouble} of=${picture} />`;
  const { data } = picture;
  return html`
    <${Head} title="Stream"><${Copied} text=${data.id} /><//>
    <${State} id=${data.id} picture=${data} />
    <section class="box"><div class="row apart"><h2>Events, newest first</h2>
      <a class="button" href=${href(["streams", id], { event: chosen, all: everything ? null : true })}>${everything ? "Fold long runs" : "Show all"}</a></div>
      <${Drawing} svg=${data.svg} label="Drawing of the stream" chosen=${chosen} choose=${choose} /></section>
    <section class="box"><h2>Why this is the tip</h2>
      <p class="soft small">The tip is the event on which the next one builds. Where a stream has branches, all nodes choose the same one:
        the branch whose events were anchored first (<abbr title="Ceramic Improvement Proposal">CIP</abbr>-145).</p>${data.notes.map((note) => html`<p>${lines(note)}</p>`)}</section>
    ${chosen && html`<${Chosen} stream=${data.id} cid=${chosen} events=${listed.data?.events ?? []} choose=${choose} />`}
    <${Trouble} of=${listed} />
    ${listed.data && html`<${Events} id=${id} events=${listed.data.events} chosen=${chosen} tip=${data.tip} />`}`;
}

const lines = (text) => text.split("\n").map((line, i) => [i > 0 && html`<br />`, line]);

function State({ id, picture }) {
  const state = useData(api`/ceramic/streams/${id}`);
  const listed = useData(api`/ceramic/search?q=${id}&limit=1`);
  const stream = listed.data?.streams[0];
  const data = state.data && parseJson(fromMultibase(state.data.data));
  return html`<div class="grid">
    <section class="box"><h2>${stream?.name ? named(stream.name) : "At a glance"}</h2><${Facts} of=${[
      ["Events", picture.summary],
      ["Tip", picture.tip && html`<${Name} of=${picture.tip} to=${href(["streams", id], { event: picture.tip })} />`],
      ["Of", stream && html`<${SortValue} of=${stream} />`],
      ["Controller", stream && html`<a href=${href(["streams"], { controller: stream.controller })}><code>${stream.controller}</code></a>`],
      ["Candidates", picture.candidates.length > 1 && names(picture.candidates, (each) => href(["streams", id], { event: each }))],
      ["Tangles", data && tanglesOf(id, data.content)],
      ["In the shell", html`<${Copied} text=${"recon-node stream show " + id} />`],
      ["Rejected", names(state.data?.validation_errors.map((each) => each.event_cid) ?? [], (cid) => href(["streams", id], { event: cid }))],
    ]} /></section>
    <section class="box"><h2>Content at the tip</h2><${Trouble} of=${state} />
      ${data && html`<${Json} value=${data.content} label="Content at the tip" />`}</section></div>`;
}

/** The tangles that a document names in its content: those that it starts, or belongs to. */
function tanglesOf(id, content) {
  const named = Object.entries(content?.tangles ?? {}).filter(([, links]) => links && typeof links === "object");
  if (!named.length) return null;
  return named.map(([name, { root }]) => html`<a key=${name} href=${href(["tangles", name, typeof root === "string" ? root : id])}>${name}</a> `);
}

function Chosen({ stream, cid, events, choose }) {
  const at = events.findIndex((each) => each.cid === cid);
  const event = events[at];
  const isDelivered = event?.state === "delivered";
  const after = useData(isDelivered ? api`/ceramic/streams/${stream}/events/${cid}` : null);
  const anchor = useData(isDelivered ? api`/ceramic/anchors/events/${cid}` : null);
  return html`<section class="box chosen" aria-label="The chosen event">
    <div class="row apart"><h2 tabindex="-1">Event <${Name} of=${cid} /></h2><div class="row">
      ${at > 0 && html`<button onClick=${() => choose(events[at - 1].cid)}>Earlier</button>`}
      ${at >= 0 && at < events.length - 1 && html`<button onClick=${() => choose(events[at + 1].cid)}>Later</button>`}
      <a class="button" href=${href(["streams", stream])}>Close</a></div></div>
    <p><${Copied} text=${cid} /></p>
    ${event && html`<p><${Badge} state=${event.state} /> ${event.kind}, height ${count(event.height)}${event.time != null && ", anchored " + moment(event.time)}</p>`}
    ${anchor.data && anchor.data.state !== "none" && html`<${Anchor} of=${anchor.data} stream=${stream} />`}
    ${event && !isDelivered && html`<p class="notice warn">It is not delivered, and does not count for the content or the tip:
      see <a href=${href(["undelivered", event.state])}>what is ${event.state}</a>.</p>`}
    ${event?.fault && html`<div class="notice bad"><strong>The event is badly signed</strong>, so it is never the tip: ${event.fault}</div>`}
    ${after.data?.errors.length > 0 && !event?.fault && html`<div class="notice bad"><strong>The event was rejected.</strong> The content stays as it was:
      <ul>${after.data.errors.map((each) => html`<li>${each}</li>`)}</ul></div>`}
    ${isDelivered && html`<h3>Content after it</h3><${Trouble} of=${after} />`}
    ${after.data && html`<${Json} value=${after.data.content} label="Content after the event" />`}
    <h3>The event itself, as DAG-JSON</h3><${Blocks} cid=${cid} />
  </section>`;
}

const WAYS = { waiting: "waits for the next tree", in_tree: "in the tree that is being anchored",
  made: "its time event is here, and its transaction is still to be looked up" };

const Anchor = ({ of, stream }) => html`<${Facts} of=${[
  ["Existed at", of.time == null ? WAYS[of.state] : moment(of.time)],
  ["Proven by", of.time_event && html`<${Name} of=${of.time_event} to=${href(["streams", stream], { event: of.time_event })} />`],
  ["Through", of.anchored_event && of.anchored_event !== of.cid && html`<${Name} of=${of.anchored_event} to=${href(["streams", stream], { event: of.anchored_event })} />, which covers it`],
  ["Transaction", of.tx_hash && html`<${Transaction} of=${of} /> on ${of.chain_id}`],
]} />`;

const Events = ({ id, events, chosen, tip }) => html`
  <${Table} caption=${events.length > MAX_ROWS ? `The latest ${MAX_ROWS} of ${count(events.length)} events` : "Events"}
    heads=${["event", "kind", "state", "#height", "#position", "anchored", "builds on"]} empty="No events."
    rows=${events.slice(-MAX_ROWS).reverse().map((each) => ({
      key: each.cid,
      chosen: each.cid === chosen,
      cells: [[html`<${Name} of=${each.cid} to=${href(["streams", id], { event: each.cid })} />`, each.cid === tip && " tip"], each.kind,
        html`<${Badge} state=${each.state} />`, count(each.height), count(each.position),
        each.kind === "time" ? (each.time == null ? each.chain_id : moment(each.time)) : "",
        long(names(each.prev, (prev) => href(["streams", id], { event: prev })))],
    }))} />`;
