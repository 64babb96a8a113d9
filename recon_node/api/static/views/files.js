// What is in a DAG: a directory as a list of files, a file by its beginning, other data as DAG-JSON.

import { html } from "../app/html.js";
import { api, useData } from "../app/api.js";
import { bytes, named } from "../app/format.js";
import { Json } from "../app/json.js";
import { Name, Table, Trouble, long } from "../app/parts.js";
import { href } from "../app/router.js";

export function Files({ root, path }) {
  const found = useData(api`/ceramic/dag/${root}/entry?path=${path}`);
  const { data } = found;
  return html`<section class="box"><h2><${Path} root=${root} path=${path} /></h2>
    <${Trouble} of=${found} />
    ${data && (data.kind === "directory" ? html`<${Directory} root=${root} path=${path} of=${data} />` : html`<${File} of=${data} path=${path} />`)}</section>`;
}

/** The path, each part of which leads to its directory. */
function Path({ root, path }) {
  const parts = path.split("/").filter(Boolean);
  return html`<nav aria-label="Path"><a href=${href(["dags", root])}>Content</a>${parts.map((part, i) => html` / <a key=${i}
    href=${href(["dags", root], { path: parts.slice(0, i + 1).join("/") })}>${part}</a>`)}</nav>`;
}

const Directory = ({ root, path, of }) => html`
  <${Table} caption="Files" hideCaption heads=${["name", "#size", "block"]} empty="An empty directory." rows=${of.entries.map((each) => ({
    key: each.name,
    cells: [long(html`<a href=${href(["dags", root], { path: path ? path + "/" + each.name : each.name })}>${named(each.name)}</a>`),
      bytes(each.size), html`<${Name} of=${each.cid} />`],
  }))} />
  ${of.is_cut && html`<p class="soft">There are more: pull the DAG to see them all.</p>`}`;

function File({ of, path }) {
  if (of.kind === "data") return html`<${Json} value=${of.value} label="Data" />`;
  const size = of.size == null ? "" : ", " + bytes(of.size);
  return html`<p class="soft">${of.kind}${size}${of.text == null && of.kind === "file" ? ": not text, so it is not shown" : ""}</p>
    ${of.text != null && html`<pre class="json" tabindex="0" role="region" aria-label=${"The beginning of " + (path || "the file")}>${of.text}</pre>`}
    ${of.text != null && of.is_cut && html`<p class="soft">There is more: pull the DAG to see it all.</p>`}`;
}
