// Preact with htm: components without a build step.

import { h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { render } from "../vendor/preact.js";
export { useEffect, useRef, useState } from "../vendor/hooks.js";

const UNSEEN = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\u2028\u2029]/gu;  // all but joiners of letters and emoji

/** A template of elements. Those without a changing part are made anew each time: Preact takes the
 * same object at another place for one that has not moved. Text of strangers must not turn the
 * writing direction of what follows, or hide: what does not print is escaped, as in the commands. */
export const html = htm.bind(function element(type, props, ...children) {
  this[0] = 3;
  return h(type, props, ...children.map((child) => typeof child === "string" ? child.replace(UNSEEN, escaped) : child));
});

const escaped = (letter) => letter.split("").map((unit) => "\\u" + unit.charCodeAt(0).toString(16).padStart(4, "0")).join("");
