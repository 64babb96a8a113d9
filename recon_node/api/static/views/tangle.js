// A tangle: its messages in the order on which all nodes agree, and as a graph.

import { html } from "../app/html.js";
import { api, useData } from "../app/api.js";
import { Drawing } from "../app/drawing.js";
import { counted, moment } from "../app/format.js";
import { Json } from "../app/json.js";
import { Copied, Head, Name, Table, Trouble, long } from "../app/parts.js";
import { go, href } from "../app/router.js";

const EVERY = 5;
const WHOLE_EVERY = 60;
const TEXTS = ["text", "body", "message", "title"];  // fields that are shown as prose

export function Tangle({ name, root }) {
  // A whole tangle takes the node a while: it is read when the number of its messages has changed.
  const listed = useData(api`/ceramic/tangles/${root}`, EVERY);
  const number = listed.data?.tangles.find((each) => each.name === name)?.candidates;
  const found = useData(listed.loading ? null : api`/ceramic/tangles/${name}/${root}?drawn=true`, WHOLE_EVERY, number);
  const { data } = found;
  return html`
    <${Head} title=${"Tangle “" + name + "”"}><${Copied} text=${root} /><//>
    <${Trouble} of=${found} />
    ${data && html`
      <p class="soft">${counted(data.messages.length, "message")} by ${counted(new Set(data.messages.map((each) => each.author)).size, "author")}.
        Every node with the same messages has them in this order.</p>
      <ol class="thread" aria-label="Messages">${data.messages.map((message, i) => html`
        <${Message} key=${message.id} message=${message} before=${data.messages[i - 1]} isTip=${data.tips.includes(message.id)} />`)}</ol>
      <section class="box"><h2>Graph, newest first</h2>
        <${Drawing} svg=${data.svg} label="Drawing of the tangle" chosen=${null} choose=${(id) => go(["streams", id])} /></section>
      ${data.excluded.length > 0 && html`<${Table} caption="Not part of it" heads=${["why", "document", "author"]} empty=""
        rows=${data.excluded.map((each) => ({
          key: each.id,
          cells: [long(each.reason), html`<${Name} of=${each.id} to=${href(["streams", each.id])} />`, html`<${Author} of=${each.author} />`],
        }))} />`}`}`;
}

const Author = ({ of }) => html`<${Name} of=${of} to=${href(["streams"], { controller: of })} />`;

/** A message; what it replies to is said unless it is the message above. */
function Message({ message, before, isTip }) {
  const { previous } = message;
  const follows = previous.length === 0 || (previous.length === 1 && previous[0] === before?.id);
  return html`<li class="box" id=${message.id}>
    <div class="row apart small"><span><${Author} of=${message.author} />${isTip && html` <span class="badge good">tip</span>`}</span>
      <a class="soft" href=${href(["streams", message.id])}>${written(message)}</a></div>
    ${!follows && html`<p class="small soft">in reply to ${previous.map((each) => html`<${Name} of=${each} to=${href(["streams", each])} /> `)}</p>`}
    <${Content} of=${message.content} /></li>`;
}

const written = ({ timestamp, received }) => (timestamp != null ? moment(timestamp / 1000) : received != null ? "received " + moment(received / 1000) : "no time");

function Content({ of }) {
  const field = TEXTS.find((each) => typeof of?.[each] === "string");
  const { tangles, timestamp, [field]: text, ...rest } = of ?? {};
  return html`${field && html`<p class="prose">${text}</p>`}
    ${Object.keys(rest).length > 0 && html`<${Json} value=${rest} label="Content" />`}`;
}
