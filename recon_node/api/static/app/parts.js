// The parts that views are made of.

import { html, useState } from "./html.js";
import { href } from "./router.js";
import { count, short } from "./format.js";

/** The heading of a view, and what it is about. */
export const Head = ({ title, children }) => html`
  <div class="head"><h1 tabindex="-1">${title}</h1>${children && html`<p class="soft">${children}</p>`}</div>`;

/** A name, cut in the middle; the whole of it is its tooltip. */
export const Name = ({ of, to, title }) => {
  const text = html`<code title=${title ?? of}>${short(of)}</code>`;
  return to ? html`<a href=${to}>${text}</a>` : text;
};

const MAX_NAMES = 20;

/** Names, the first of many; null if there are none. */
export const names = (all, to = () => null) => all.length ? html`${all.slice(0, MAX_NAMES).map((each) =>
  html`<${Name} key=${each} of=${each} to=${to(each)} /> `)}${all.length > MAX_NAMES && `and ${count(all.length - MAX_NAMES)} more`}` : null;

/** A whole name, with a button that copies it. */
export function Copied({ text }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  const can = Boolean(navigator.clipboard);  // only at https:, localhost and loopback addresses
  return html`<code>${text}</code>${can && html` <button class="plain" onClick=${copy}
    aria-label=${"Copy " + text}>${done ? "copied" : "copy"}</button>`}`;
}

/** What an answer is instead of data: an error in words, unless the form for the token says it; or
 * that it is on its way. */
export function Trouble({ of: { error, loading } }) {
  if (error?.status === 401) return null;
  if (error) return html`<p class="notice bad" role="alert">${error.message}</p>`;
  return loading ? html`<p class="loading soft" role="status">Loading …</p>` : null;
}

const TONES = { delivered: "good", connected: "good", agreed: "good", pending: "warn",
  waiting: "warn", refused: "bad", missing: "bad", "badly signed": "bad", known: "soft" };

/** A state in a frame. */
export const Badge = ({ state }) => html`<span class=${"badge " + (TONES[state] ?? "soft")}>${state}</span>`;

/**
 * A table; cards on a phone, which take the roles of a table from its elements, so they are named.
 * @param {{caption: string, hideCaption?: boolean, heads: string[], rows: object[], empty: string}} props
 *   a head that begins with "#" is one of numbers; a row is {key, cells, chosen?}
 */
export function Table({ caption, hideCaption, heads, rows, empty }) {
  const kinds = heads.map((head) => (head.startsWith("#") ? "n" : ""));
  const labels = heads.map((head) => head.replace("#", ""));  // of the lines of a card, on a phone
  return html`
    <div class="box tight"><div class="scroll" tabindex="0" role="region" aria-label=${caption}><table role="table">
      <caption class=${hideCaption ? "hidden" : ""}>${caption}</caption>
      <thead role="rowgroup"><tr role="row">${labels.map((label, i) => html`<th role="columnheader" scope="col" class=${kinds[i]}>${label}</th>`)}</tr></thead>
      <tbody role="rowgroup">
        ${rows.map(({ key, cells, chosen }) => html`<tr role="row" key=${key} class=${chosen ? "chosen" : ""}>
          ${cells.map((cell, i) => html`<td role="cell" class=${[kinds[i], cell?.long ? "long" : ""].join(" ")} data-label=${labels[i]}>${cell?.long ?? cell}</td>`)}
        </tr>`)}
        ${rows.length === 0 && html`<tr role="row"><td role="cell" class="empty" colspan=${heads.length}>${empty}</td></tr>`}
      </tbody>
    </table></div></div>`;
}

/** A cell that may take several lines. */
export const long = (content) => ({ long: content ?? "" });

/** Where a paged list begins and goes on. */
export const Pager = ({ parts, params = {}, after, next }) => (after || next != null) && html`
  <nav class="row" aria-label="Pages">
    ${after && html`<a class="button" href=${href(parts, params)}>First page</a>`}
    ${next != null && html`<a class="button" href=${href(parts, { ...params, after: next })}>Next page</a>`}
  </nav>`;

/** Views beside each other, of which one is shown. */
export const Tabs = ({ label, of, now }) => html`
  <nav class="tabs" aria-label=${label}>${of.map(([name, text, to]) => html`
    <a key=${name} href=${to} aria-current=${name === now ? "page" : null}>${text}</a>`)}</nav>`;

/** Terms and what they are; entries without a value are left out. */
export const Facts = ({ of }) => html`<dl class="facts">
  ${of.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;

/** Large numbers with their names. */
export const Numbers = ({ of }) => html`<dl class="numbers">
  ${of.map(([name, value, tone]) => html`<div key=${name}><dt>${name}</dt><dd class=${tone ?? ""}>${value}</dd></div>`)}</dl>`;

/** A field, with the text above it. */
export const Field = ({ label, children }) => html`<label>${label}${children}</label>`;
