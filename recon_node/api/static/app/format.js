// Numbers, times and names as people read them.

const number = new Intl.NumberFormat("en");

/** 12,345 */
export const count = (value) => (value == null ? "–" : number.format(value));

/** "1 event", "2 events" */
export const counted = (value, word) => count(value) + " " + word + (value === 1 ? "" : "s");

/** 1.2 KiB, as the commands print it. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return (unit ? value.toFixed(1) : Math.round(value)) + " " + units[unit];
}

/** 3 ms, 1.2 s */
export function span(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.0095) return (seconds * 1000).toFixed(1) + " ms";
  return seconds < 1 ? (seconds * 1000).toFixed(0) + " ms" : seconds.toFixed(1) + " s";
}

/** A time rather than "5 s ago": the page changes only when something has happened. */
export function moment(seconds) {
  if (seconds == null) return "never";
  const then = new Date(seconds * 1000);
  const isToday = then.toDateString() === new Date().toDateString();
  return isToday ? then.toLocaleTimeString("en-GB") : then.toLocaleString("en-GB");
}

/** The first and the last characters of a name: the first are the same in most. */
export function short(name) {
  if (name.startsWith("did:key:")) return "did:key:…" + name.slice(-8);
  return name.length <= 20 ? name : name.slice(0, 5) + "…" + name.slice(-8);
}

/** The name that somebody gave to something, which may be none, or blank. */
export const named = (name) => name?.trim() ? name : "(no name)";

/** An integer as it was written, which JavaScript rounds. */
class Written extends Number {
  constructor(text) {
    super(text);
    this.text = text;
  }

  toString() {
    return this.text;
  }
}

/** JSON as a value; large integers are kept as they are, if the browser can tell. */
export const parseJson = (text) => JSON.parse(text, (_, value, context) =>
  Number.isInteger(value) && !Number.isSafeInteger(value) && context ? new Written(context.source) : value);

/** Bytes of base64url multibase text ("u...") as text. */
export function fromMultibase(text) {
  const base64 = text.slice(1).replaceAll("-", "+").replaceAll("_", "/");
  const raw = atob(base64);
  return new TextDecoder().decode(Uint8Array.from(raw, (each) => each.charCodeAt(0)));
}
