// What the page asks of its server, and in which words the server refuses.

/** A request that was refused or broke off; the message is one sentence for the reader. */
export class Refused extends Error {}

const KEY = "eagle_jax key";

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

/** Keeps the API key until the tab is closed. */
export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** What the page has to know of the model; null where the server wants another key. */
export async function about() {
  const answer = await reach("ui/about", { headers: headers() });
  if (answer.status === 401) return null;
  if (!answer.ok) throw new Refused(await sentence(answer));
  return answer.json();
}

/** Posts `body` and yields the server-sent events of the answer, until it ends or `signal` aborts. */
export async function* events(path, body, signal) {
  const answer = await reach(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!answer.ok) throw new Refused(await sentence(answer));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const told = (rest + value).split("\n\n");
      rest = told.pop();
      for (const one of told) {
        const event = JSON.parse(one.slice("data: ".length));
        if (event.error) throw new Refused(event.error.message);
        yield event;
      }
    }
  } catch (error) {
    if (error instanceof Refused || signal.aborted) throw error;
    throw new Refused("The server broke off in the middle of the answer; is it still running?");
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function reach(path, request) {
  try {
    return await fetch(path, request);
  } catch (error) {
    if (request.signal?.aborted) throw error;
    throw new Refused("The server does not answer; is it still running?");
  }
}

async function sentence(answer) {
  const said = await answer.json().catch(() => null);
  return said?.error?.message ?? `The server answered with status ${answer.status}.`;
}
