// Asks the node's API, and keeps asking while the page is visible.
//
// A node may require a token. It is kept for this tab only (sessionStorage), never in the address.

import { parseJson } from "./format.js";
import { useEffect, useState } from "./html.js";

const TOKEN = "token";
const RETRY = 300;  // milliseconds
const listeners = new Set();
let tokenWanted = false;
let version = 0;

/** An answer of the API that is an error; the message is for people. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Keep the token that a person has entered, and ask everything again. */
export function setToken(token) {
  sessionStorage.setItem(TOKEN, token);
  tokenWanted = false;
  version += 1;
  for (const listener of listeners) listener({});
}

function wantToken() {
  if (tokenWanted) return;
  tokenWanted = true;
  for (const listener of listeners) listener({});
}

/** Whether the node has asked for its token, and whether one is kept; `version` changes with each. */
export function useToken() {
  const [, redraw] = useState({});
  useEffect(() => {
    listeners.add(redraw);
    return () => listeners.delete(redraw);
  }, []);
  return { wanted: tokenWanted, given: sessionStorage.getItem(TOKEN) != null, version };
}

/**
 * Read JSON from a path of this node.
 * @param {string} path
 * @param {AbortSignal} [signal]
 */
export async function get(path, signal) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { authorization: "Bearer " + token } : {};
  let answer;
  try {
    // Again once: a browser drops its connections when a network comes or goes, even loopback's.
    answer = await fetch(path, { headers, signal }).catch((error) => again(error, path, { headers, signal }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The node does not answer. Is it running?");
  }
  const body = await answer.text().then(parseJson).catch(() => ({}));
  if (answer.status === 401) wantToken();
  if (!answer.ok) throw new ApiError(answer.status, body.message ?? "HTTP " + answer.status);
  return body;
}

async function again(error, path, options) {
  if (error.name === "AbortError") throw error;
  await new Promise((resume) => setTimeout(resume, RETRY));
  return fetch(path, options);
}

/**
 * What a path answers. It is asked again every so many seconds, but not while the tab is hidden;
 * meanwhile the last answer stays.
 * @param {string | null} path null: nothing is asked
 * @param {number} [every] seconds; 0: once
 * @param {any} [cause] it is asked again when this changes
 * @returns {{data: any, error: ApiError | null, loading: boolean}}
 */
export function useData(path, every = 0, cause = null) {
  const [state, setState] = useState({ path, data: null, error: null });
  const token = useToken();
  useEffect(() => {
    if (!path) return undefined;
    const abort = new AbortController();
    let timer;
    let busy = false;
    const load = async () => {
      if (busy || document.hidden) return;
      busy = true;
      try {
        setState({ path, data: await get(path, abort.signal), error: null });
      } catch (error) {
        if (error.name === "AbortError") return;
        setState((old) => ({ path, data: old.path === path ? old.data : null, error }));
      }
      busy = false;
      clearTimeout(timer);
      if (every && !abort.signal.aborted) timer = setTimeout(load, every * 1000);
    };
    document.addEventListener("visibilitychange", load);
    load();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", load);
    };
  }, [path, every, cause, token.version]);
  const { data, error } = state.path === path ? state : { data: null, error: null };
  return { data, error, loading: !data && !error };
}

/** A path of the API, with the values in it encoded: some are from the address, which anybody may have made up. */
export const api = (texts, ...values) => String.raw(texts, ...values.map(encodeURIComponent));

/** A path with those parameters that are not empty. */
export function withQuery(path, params) {
  const given = Object.entries(params).filter(([, value]) => value != null && value !== "");
  return given.length ? path + "?" + new URLSearchParams(given) : path;
}
