// An answer of the server, drawn: the number, the bar under it, the list of probabilities, the waterfall.
import { apart, byId, chances, decimal, gauge, percent, signed, waterfall } from "./drawing.js";

const isMany = (prediction) => prediction.probabilities !== undefined;
const partsOf = (prediction) => prediction.explanation.contributions;

/** One prediction, or two to be compared.
 *
 * about: {model, target, unfolded, differs(field), jump(field), fold()}
 */
export function showPredictions([first, second], about) {
  const isChance = isMany(first) || first.class !== undefined || about.model.task === "share";
  const text = isChance ? percent : decimal;
  byId("what").textContent = (second ? "A: " : "") + whatIs(first, isChance, about);
  byId("prediction").textContent = text(first.prediction);
  byId("second").hidden = !second;
  if (second) {
    byId("second-number").textContent = (isMany(second) ? `${second.class}, ` : "") + text(second.prediction);
    const comparable = first.class === second.class || !isMany(first);
    byId("gap").textContent = comparable ? `A is ${apart(first.prediction - second.prediction, isChance)}` : "";
  }
  const base = isMany(first) || !isChance ? undefined : first.explanation?.base;
  const typical = base === undefined ? null : 1 / (1 + Math.exp(-base));
  byId("typical").hidden = typical === null;
  byId("typical").textContent = `typical: ${percent(typical)}`;
  byId("gauge").hidden = !isChance;
  if (isChance) gauge(byId("gauge"), first.prediction, typical, second?.prediction);
  byId("chances").hidden = !isMany(first);
  if (isMany(first)) byId("chances").lastElementChild.replaceChildren(chances(first.probabilities, about.unfolded, about.fold));
  showWhy(first, second, isChance && !isMany(first) ? "log-odds" : "score", about);
}

function whatIs(prediction, isChance, { model, target }) {
  if (isMany(prediction)) return `the likeliest ${target} is ${prediction.class}, with a chance of`;
  if (!isChance) return `${target} is expected to be`;
  const second = target === model.target ? model.classes?.[1] : undefined;
  return second === undefined ? `chance of ${target}` : `chance that ${target} = ${second}`;
}

function showWhy(first, second, unit, about) {
  const steps = byId("steps");
  // Scores of two classes have no difference that fields could be credited with.
  const isPair = Boolean(second) && !(isMany(first) && first.class !== second.class);
  steps.classList.toggle("pair", isPair);
  byId("why-title").textContent = isPair ? "From B to A" : "From a typical row to this one";
  if (!first.explanation) return steps.replaceChildren();
  const picture = isPair ? pairPicture(first, second, about) : rowPicture(first, unit);
  const told = unit === "score" ? "" : `, in ${unit}`;
  const words = isPair
    ? `What each field adds to the score of A, to that of B, and the difference${told}. Fields that differ are bold.`
    : `What each field adds to the score${told}. Choose one to change it.`;
  const of = isMany(first) ? ` The score is that of ${about.target} = ${first.class}.` : "";
  byId("why-words").textContent = words + of;
  return steps.replaceChildren(...waterfall(picture, about.unfolded, about));
}

function rowPicture({ explanation, score }, unit) {
  return {
    head: [unit],
    start: { label: "a typical row", at: explanation.base, cells: [decimal(explanation.base)] },
    end: { label: "this row", at: score, cells: [decimal(score)] },
    parts: explanation.contributions.map(({ field, value, contribution }) => ({ field, value, amount: contribution })),
  };
}

/** Differences of contributions, which sum to the score of A less that of B. */
function pairPicture(first, second, { differs }) {
  const others = new Map(partsOf(second).map((part) => [part.field, part]));
  const parts = partsOf(first).map(({ field, value, contribution }) => {
    const { value: other, contribution: b } = others.get(field);
    return { field, value, other, amount: contribution - b, a: contribution, b, differs: differs(field) };
  });
  return {
    head: ["A − B", "A", "B"],
    start: { label: "B", at: second.score, cells: ["", "", decimal(second.score)] },
    end: { label: "A", at: first.score, cells: [signed(first.score - second.score), decimal(first.score), ""] },
    parts,
    pair: true,
  };
}
