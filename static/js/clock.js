// The server's clock as seen from here. Ages are measured against it, so a viewer's wrong clock makes nothing stale.
let offset = 0;

export function setServerTime(unixSeconds) {
  offset = unixSeconds - Date.now() / 1000;
}

export const now = () => Date.now() / 1000 + offset;
