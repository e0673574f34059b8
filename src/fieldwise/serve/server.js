// Requests to the server: JSON in and out, its messages as errors, a token if it needs one.
import { byId } from "./drawing.js";

const KEPT = "fieldwise token";

/** A request that the server refused, with its message; status 0 if it did not answer. */
export class Refusal extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function storage(use) {
  try {
    return use(sessionStorage);
  } catch { // storage is disabled: the token lasts as long as the page
    return null;
  }
}

let token = storage((kept) => kept.getItem(KEPT)) ?? "";
let asking = null;

export const hasToken = () => token !== "";

/** Whole numbers that a double cannot hold stay text, so that no digit is lost. */
function exact(_, value, context) {
  const lost = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
  return lost && context?.source ? context.source : value;
}

async function read(answer) {
  const text = await answer.text();
  let body = null;
  try {
    body = JSON.parse(text, exact);
  } catch { /* not JSON: said below */ }
  if (answer.ok && body !== null) return body;
  const said = typeof body?.error === "string" ? body.error : `The server answered ${answer.status} ${answer.statusText}.`;
  throw new Refusal(said, answer.status);
}

/** The answer to GET path, or to POST path with a body. */
export async function ask(path, body, signal) {
  for (;;) {
    const headers = { accept: "application/json" };
    if (body) headers["content-type"] = "application/json";
    const used = token;
    if (used) headers.authorization = `Bearer ${used}`;
    let answer;
    try {
      answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refusal("The server does not answer.");
    }
    if (answer.status !== 401) return read(answer);
    if (used === token) await (asking ??= askToken(used !== "").finally(() => { asking = null; }));
  }
}

/** Asks for the token; `refused` if one was sent and refused. */
function askToken(refused) {
  const gate = byId("gate");
  byId("refused").hidden = !refused;
  byId("token").value = "";
  gate.returnValue = "";
  gate.showModal();
  return new Promise((done, fail) => {
    gate.addEventListener("close", () => {
      const given = byId("token").value;
      byId("token").value = "";
      if (gate.returnValue !== "go") return fail(new Refusal("The server wants a token and was given none.", 401));
      token = given;
      storage((kept) => kept.setItem(KEPT, token));
      return done();
    }, { once: true });
  });
}

byId("gate").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  byId("gate").close("go");
});
byId("leave").addEventListener("click", () => byId("gate").close(""));
