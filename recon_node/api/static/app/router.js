// The address holds what is shown: #/streams/k...?event=b... So it can be kept, sent, and gone back
// to.

import { useEffect, useState } from "./html.js";

/** The parts of the path, and the parameters behind it. */
export function readRoute(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { parts, query: new URLSearchParams(query) };
}

/** A part of the path as it was before it was encoded; as it is, if a percent sign in it was typed. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The route as it is now; the component is drawn again when it changes. */
export function useRoute() {
  const [route, setRoute] = useState(readRoute);
  useEffect(() => {
    const read = () => setRoute(readRoute());
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  return route;
}

/**
 * The address of a view.
 * @param {string[]} parts
 * @param {Record<string, unknown>} [params] empty ones are left out
 */
export function href(parts, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value != null && value !== "");
  const query = given.length ? "?" + new URLSearchParams(given) : "";
  return "#/" + parts.map(encodeURIComponent).join("/") + query;
}

/** Go to a view. */
export function go(parts, params) {
  location.hash = href(parts, params);
}
