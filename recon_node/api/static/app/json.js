// DAG-JSON with colours; CIDs of links lead to their events.

import { html } from "./html.js";
import { href } from "./router.js";

const MAX_TEXT = 2000;

const MAX_VALUES = 10_000;  // a browser takes a kilobyte and more for each, and content has millions

/** A value of JSON, as a tree of text. */
export const Json = ({ value, label }) => html`
  <pre class="json" tabindex="0" role="region" aria-label=${label}>${draw(value, "", { values: MAX_VALUES })}</pre>`;

function draw(value, indent, left) {
  if (value === null || typeof value !== "object" || value instanceof Number) return scalar(value);
  const more = indent + "  ";
  const keys = Object.keys(value);
  if (!Array.isArray(value) && keys.length === 1 && keys[0] === "/" && typeof value["/"] === "string")
    return html`<a href=${href(["events", value["/"]])}>${value["/"]}</a>`;
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!keys.length) return open + close;
  const shown = keys.slice(0, left.values);
  left.values -= shown.length;
  return [open, "\n", shown.map((key, i) => [more,
    Array.isArray(value) ? "" : [html`<span class="name">${JSON.stringify(key)}</span>`, ": "],
    draw(value[key], more, left), i < keys.length - 1 ? ",\n" : "\n"]),
    shown.length < keys.length && `${more}… (${keys.length - shown.length} more)\n`, indent, close];
}

function scalar(value) {
  const text = value instanceof Number ? String(value) : JSON.stringify(value);
  const shown = text.length > MAX_TEXT ? text.slice(0, MAX_TEXT) + "… (" + text.length + ")" : text;
  return html`<span class=${typeof value === "string" ? "text" : "value"}>${shown}</span>`;
}
