// Numbers, sizes and times in readable form.

const number = new Intl.NumberFormat("en");

export const count = (value) => (value == null ? "–" : number.format(value));

export function rate(value) {
  if (!value) return "0/s";
  return value < 10 ? `${value.toFixed(1)}/s` : `${number.format(Math.round(value))}/s`;
}

export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (value >= 1024 && place < units.length - 1) {
    value /= 1024;
    place += 1;
  }
  return `${place && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[place]}`;
}

export function duration(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const dateAndTime = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const time = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** A point in time in the browser's time zone: 2024-01-31 12:00:00. */
export const moment = (value) => dateAndTime.format(new Date(value)).replace(",", "");

/** The same without seconds. */
export const minute = (value) => moment(value).slice(0, -3);

export const clock = (value) => time.format(new Date(value));

export const rateOf = (stats, name) => stats?.[`${name}_details`]?.rate ?? 0;
