// Numbers, sizes and times as people read them.

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

export const moment = (value) => new Date(value).toLocaleString();

export const rateOf = (stats, name) => stats?.[`${name}_details`]?.rate ?? 0;
