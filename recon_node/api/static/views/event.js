// An event by itself: its blocks as DAG-JSON. It may be one that is not delivered.

import { html } from "../app/html.js";
import { api, useData } from "../app/api.js";
import { bytes } from "../app/format.js";
import { Json } from "../app/json.js";
import { Copied, Facts, Head, Name, Trouble, names } from "../app/parts.js";
import { href } from "../app/router.js";

export function EventView({ cid }) {
  const found = useData(api`/ceramic/events/${cid}/blocks`);
  const { data } = found;
  return html`
    <${Head} title="Event"><${Copied} text=${cid} /><//>
    ${found.error?.status === 404
      ? html`<p class="notice">This node has no event of that CID. It may be the CID of a block inside of one, such as a payload or a proof,
          or of a DAG: <a href=${href(["dags", cid])}>look there</a>.</p>`
      : html`<${Trouble} of=${found} />`}
    ${data && html`<section class="box"><${Facts} of=${[
      ["Kind", data.kind],
      ["Stream", html`<${Name} of=${data.init} to=${href(["streams", data.init], { event: cid })} />`],
      ["Builds on", names(data.prev, (each) => href(["events", each]))],
      ["Signed by", data.signer && html`<code>${data.signer}</code>`],
      ["Size", bytes(data.size)],
      ["In the shell", html`<${Copied} text=${`recon-node events get ${cid} --show`} />`],
    ]} /><${BlockList} blocks=${data.blocks} /></section>`}`;
}

/** The blocks of an event, loaded by its CID. */
export function Blocks({ cid }) {
  const found = useData(api`/ceramic/events/${cid}/blocks`);
  return html`<${Trouble} of=${found} />${found.data && html`<${BlockList} blocks=${found.data.blocks} />`}`;
}

const BlockList = ({ blocks }) => blocks.map((block) => html`
  <details key=${block.cid} open=${["payload", "event"].includes(block.role)}>
    <summary>${block.role} <${Name} of=${block.cid} /> <span class="soft">${bytes(block.size)}</span></summary>
    <${Json} value=${block.value} label=${"Block: " + block.role} /></details>`);
