// Preact with htm: components without a build step.

import { h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { render } from "../vendor/preact.js";
export { useEffect, useRef, useState } from "../vendor/hooks.js";

/** A template of elements. Those without a changing part are made anew each time: Preact takes the
 * same object at another place for one that has not moved. */
export const html = htm.bind(function element(...args) {
  this[0] = 3;
  return h(...args);
});
