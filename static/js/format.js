// Number rules of the design: value and unit apart, missing is "—" and never 0, minus is "−", clocks have 24 hours.
import { now } from "./clock.js";
import { gettext } from "./i18n.js";
import { isUtc, timeZone } from "./zone.js";

export const MISSING = "—";
const language = document.documentElement.lang || "en";
const fixed = [0, 1, 2, 3].map((digits) => new Intl.NumberFormat(language, { minimumFractionDigits: digits, maximumFractionDigits: digits }));

const known = (value) => typeof value === "number" && Number.isFinite(value);

export const number = (value, digits = 0) => (known(value) ? fixed[digits].format(value).replace("-", "−") : MISSING);

// Small numbers with two significant digits, so that neither they nor an axis's ticks read 0 or alike: 0.025, 0.15, 7.5, 3.
const two = new Intl.NumberFormat(language, { maximumSignificantDigits: 2 });
export const significant = (value) => (known(value) ? two.format(value).replace("-", "−") : MISSING);

// {value, unit} of a latency given in ms: whole ms below 1,000, above it seconds with two decimals.
export function latency(ms) {
  if (!known(ms)) return { value: MISSING, unit: "" };
  return Math.round(ms) < 1000 ? { value: number(Math.round(ms)), unit: "ms" } : { value: number(ms / 1000, 2), unit: "s" };
}

export function latencyText(ms) {
  const { value, unit } = latency(ms);
  return unit ? `${value} ${unit}` : value;
}

// Three significant figures or so: 0.72, 9.6, 30.5, 1,204.
export function rate(value) {
  if (!known(value)) return MISSING;
  if (value >= 99.95) return number(value);
  return value > 0 && value < 0.995 ? number(value, 2) : number(value, 1);
}

export function byteRate(bytesPerSecond) {
  if (!known(bytesPerSecond)) return { value: MISSING, unit: "" };
  if (bytesPerSecond > 0 && bytesPerSecond < 1e7) return { value: number(bytesPerSecond / 1e6, 2), unit: "MB/s" };
  const gigabytes = bytesPerSecond / 1e9;
  return { value: number(gigabytes, gigabytes < 9.995 ? 2 : 1), unit: "GB/s" };
}

export const percent = (share) => (known(share) ? number(Math.round(share * 100)) : MISSING);

// 0:48, 12:05, 1:02:09
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const pad = (value) => String(value).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
}

// "12 s", "3 min 5 s", "2 h 4 min"
export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return gettext("%(s)s s", { s: whole });
  if (whole < 3600) return gettext("%(m)s min %(s)s s", { m: Math.floor(whole / 60), s: whole % 60 });
  return gettext("%(h)s h %(m)s min", { h: Math.floor(whole / 3600), m: Math.floor(whole / 60) % 60 });
}

// The largest unit alone, where there is little room.
export function roughly(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return gettext("%(s)s s", { s: whole });
  if (whole < 3600) return gettext("%(m)s min", { m: Math.floor(whole / 60) });
  if (whole < 86400) return gettext("%(h)s h", { h: Math.floor(whole / 3600) });
  return gettext("%(d)s d", { d: Math.floor(whole / 86400) });
}

// A moment (Unix seconds) in the zone that the viewer chose.
function inZone(options) {
  const made = new Map();
  return (unixSeconds) => {
    if (!known(unixSeconds)) return MISSING;
    if (!made.has(isUtc())) made.set(isUtc(), new Intl.DateTimeFormat(language, { ...options, hour12: false, timeZone: timeZone() }));
    return made.get(isUtc()).format(unixSeconds * 1000);
  };
}

export const clock = inZone({ hour: "2-digit", minute: "2-digit" });
export const clockSeconds = inZone({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const day = inZone({ day: "numeric", month: "short" });
const year = inZone({ year: "numeric" });
const dayOfYear = inZone({ day: "numeric", month: "short", year: "numeric" });
// A day that may lie far away: of another year than the present one with its year.
export const date = (unixSeconds) => (year(unixSeconds) === year(now()) ? day : dayOfYear)(unixSeconds);
// A moment in a list.
export const dateTime = (unixSeconds) => `${date(unixSeconds)} ${clock(unixSeconds)}`;
export const utc = (unixSeconds) => (known(unixSeconds) ? `${new Date(unixSeconds * 1000).toISOString().slice(0, 19)}Z` : MISSING);

// GPU indices as people say them: 0–3, 6
export function indices(list) {
  const sorted = [...list].sort((a, b) => a - b);
  const parts = [];
  for (let start = 0, end; start < sorted.length; start = end + 1) {
    end = start;
    while (end + 1 < sorted.length && sorted[end + 1] === sorted[end] + 1) end += 1;
    parts.push(end > start ? `${sorted[start]}–${sorted[end]}` : `${sorted[start]}`);
  }
  return parts.join(", ");
}

// GPUs are sold by binary gigabytes: 80, 141.
export const gibibytes = (bytes) => (known(bytes) ? number(bytes / 2 ** 30) : MISSING);
