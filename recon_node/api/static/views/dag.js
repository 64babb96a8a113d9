// One DAG, or one identifier and what it resolves to.

import { html } from "../app/html.js";
import { api, useData, useToken } from "../app/api.js";
import { bytes, count } from "../app/format.js";
import { Copied, Facts, Head, Name, Table, Trouble, long, names } from "../app/parts.js";
import { href } from "../app/router.js";
import { Files } from "./files.js";

const EVERY = 10;

export const Dag = ({ id, query }) => (id.startsWith("did:") ? html`<${Publication} id=${id} />` : html`<${Root} id=${id} query=${query} />`);

function Root({ id, query }) {
  const found = useData(api`/ceramic/dag/${id}`, EVERY);
  const token = useToken();  // which a link does not send
  const { data } = found;
  return html`
    <${Head} title="DAG"><${Copied} text=${id} /><//>
    <${Trouble} of=${found} />
    ${data && html`<section class="box"><${Facts} of=${[
      ["Here", data.complete ? html`<span class="good">complete</span>` : html`<span class="warn">incomplete</span>`],
      ["Blocks", count(data.blocks) + ", " + bytes(data.bytes)],
      ["Shards", names(data.shards)],
      ["Shards that nothing names", names(data.unclaimed)],
      ["Missing blocks", lacking(data.missing_blocks)],
      ["Missing shards", lacking(data.missing_shards)],
      ["Missing operations", lacking(data.missing_replicas)],
      ["Heads of its log", names(data.heads)],
      ["Ignored events", data.ignored ? count(data.ignored) : null],
      ["In the shell", html`<${Copied} text=${`recon-node dag pull ${id} --out DIRECTORY`} />`],
    ]} />
    ${data.complete && !token.given && html`<div><a class="button" href=${api`/ceramic/dag/${id}.car`} download>Download as CAR</a></div>`}</section>
    ${data.blocks > 0 && html`<${Files} root=${id} path=${query.get("path") ?? ""} />`}`}`;
}

const lacking = ({ count: number, first }) => (number ? html`<span class="warn">${count(number)}</span>: ${names(first)}` : null);

function Publication({ id }) {
  const found = useData(api`/ceramic/dag/publish/${id}`, EVERY);
  const { data } = found;
  return html`
    <${Head} title="Publishes"><${Copied} text=${id} /><//>
    <${Trouble} of=${found} />
    ${data && html`<section class="box"><${Facts} of=${[
      ["Resolves to", data.link ? html`<a href=${href(["dags", data.link])}><code>${data.link}</code></a>` : "nothing yet"],
      ["By the operation", data.origin && html`<code>${data.origin}</code>`],
      ["Later publish, not checked", data.pending && html`<code>${data.pending.link}</code>`],
      ["That waits for", names(data.waiting_for)],
      ["Publishes, in order", names(data.order)],
      ["Ignored events", data.ignored ? count(data.ignored) : null],
    ]} /></section>
    ${data.refused.length > 0 && html`<${Table} caption="Refused publishes" heads=${["publish", "reason"]} empty=""
      rows=${data.refused.map((each) => ({ key: each.cid, cells: [html`<${Name} of=${each.cid} />`, long(each.reason)] }))} />`}`}`;
}
