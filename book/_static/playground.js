"use strict";
/* The playground of the worked example: one query, a few keys.
   The arithmetic comes first, as functions that know nothing of the page (the tests run them too); then the page. */

/** Share out a whole by score: exp of each score, divided by their sum. A score of -Infinity gets exactly 0.
    Subtracting the largest score changes no weight, and keeps exp from overflowing. Nothing left gives only zeros. */
function softmax(scores) {
  const largest = Math.max(...scores);
  const exps = scores.map((score) => (score === -Infinity ? 0 : Math.exp(score - largest)));
  const total = exps.reduce((sum, x) => sum + x, 0);
  return { largest, exps, total, weights: exps.map((x) => (total === 0 ? 0 : x / total)) };
}

/** Attend from one query to keys [{score, value, masked}]. With maskAfter the mask comes too late, on purpose. */
function attend(keys, { divisor = 1, maskAfter = false } = {}) {
  const scaled = keys.map((key) => key.score / divisor);
  const masked = scaled.map((score, i) => (keys[i].masked && !maskAfter ? -Infinity : score));
  const { largest, exps, total, weights: shares } = softmax(masked);
  const weights = shares.map((share, i) => (keys[i].masked ? 0 : share));
  const parts = weights.map((weight, i) => weight * keys[i].value);
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  return { scaled, masked, largest, exps, total, shares, weights, parts, weightSum: sum(weights), output: sum(parts) };
}

/** Write a number for people: four decimals at most, no trailing zeros, a true minus sign, −∞. */
function say(number) {
  if (number === -Infinity) return "−∞";
  const text = String(Number(number.toFixed(4)));
  if (Number(text) === 0) return number > 0 ? "< 0.0001" : number < 0 ? "> −0.0001" : "0";
  return text.replace("-", "−");
}

/** Say in a sentence or two what came out. */
function summarise(keys, result) {
  const terms = keys.map((key, i) => `${say(result.weights[i])} × ${key.value < 0 ? `(${say(key.value)})` : say(key.value)}`);
  return (
    `Weights: ${result.weights.map(say).join(", ")}. They sum to ${say(result.weightSum)}. ` +
    `Output: ${terms.join(" + ")} = ${say(result.output)}.`
  );
}

/** Say why it came out that way. */
function explain(keys, result, { maskAfter = false } = {}) {
  const left = keys.filter((key) => !key.masked);
  if (left.length === 0 && !maskAfter) {
    return (
      "Every key is masked, so nothing is left to share out: each exp is 0, and a softmax would divide 0 by 0. " +
      "The book's rule for such a query: all weights are 0, and so is the output."
    );
  }
  if (maskAfter && left.length < keys.length) {
    const lost = result.shares.reduce((sum, share, i) => sum + (keys[i].masked ? share : 0), 0);
    return (
      `This is the mistake. The softmax had already given ${say(lost)} of the whole to masked keys, and that part is lost: ` +
      `the weights sum to ${say(result.weightSum)} instead of 1. Mask before the softmax, and what is left shares out the whole.`
    );
  }
  if (left.length === 1) return "One key is left, so it gets the whole weight, whatever its score, and the output is its value.";
  const weights = result.weights.filter((_, i) => !keys[i].masked);
  if (weights.every((weight) => Math.abs(weight - weights[0]) < 1e-12)) {
    return `Equal scores get equal weights: the output is the plain average of ${left.length} values.`;
  }
  return "A higher score gets more weight. The weights sum to 1, so the output lies between the smallest and the largest value.";
}

if (typeof module !== "undefined") module.exports = { softmax, attend, say, summarise, explain };

/* ---- The page ---------------------------------------------------------------------------------------------------- */

const MOST_KEYS = 6;
const EXAMPLES = {
  equal: { scores: [0, 0], values: [2, 8], masked: [] },
  masked: { scores: [0, 0], values: [2, 8], masked: [1] },
  unequal: { scores: [2, 0.5, -1], values: [2, 8, 5], masked: [] },
  large: { scores: [1000, 999], values: [2, 8], masked: [] },
  empty: { scores: [0, 0], values: [2, 8], masked: [0, 1] },
};

function start() {
  const element = (id) => document.getElementById(id);
  let keys = [];
  let hidden = false; // the reader wants to guess first, and hasn't yet
  let spoken; // the timer of what the screen reader is told

  // Any number in range will do; the step of an input is only for its arrows.
  const good = (input) => input.value !== "" && !input.validity.rangeOverflow && !input.validity.rangeUnderflow;

  const settings = () => ({
    divisor: good(element("divisor")) ? Number(element("divisor").value) : 1,
    maskAfter: document.querySelector("input[name=order]:checked").value === "after",
  });

  function load(name) {
    const { scores, values, masked } = EXAMPLES[name];
    element("keys").replaceChildren();
    keys = [];
    scores.forEach((score, i) => addKey({ score, value: values[i], masked: masked.includes(i) }));
    element("divisor").value = "1";
    element("divisor").removeAttribute("aria-invalid");
    document.querySelector("input[name=order][value=before]").checked = true;
    changed();
  }

  /** Add a key with its controls, which write into it. */
  function addKey(key) {
    const number = keys.push(key);
    const row = element("key-row").content.cloneNode(true).firstElementChild;
    const field = (name) => row.querySelector(`[data-field=${name}]`);
    row.querySelector("legend").textContent = `Key ${number}`;
    row.querySelector(".mask span").textContent = `Mask key ${number}`;
    field("slider").setAttribute("aria-label", `Score of key ${number}, slider`);
    field("score").setAttribute("aria-label", `Score of key ${number}`);
    field("value").setAttribute("aria-label", `Value of key ${number}`);
    field("slider").value = key.score;
    field("score").value = key.score;
    field("value").value = key.value;
    field("masked").checked = key.masked;

    field("slider").addEventListener("input", () => {
      field("score").value = field("slider").value;
      take("score");
    });
    field("score").addEventListener("input", () => {
      if (take("score")) field("slider").value = key.score;
    });
    field("value").addEventListener("input", () => take("value"));
    field("masked").addEventListener("change", () => {
      key.masked = field("masked").checked;
      changed();
    });

    /** Take over a number, or say what is wrong with it and keep the last good one. */
    function take(name) {
      const input = field(name);
      input.setAttribute("aria-invalid", String(!good(input)));
      const wrong = row.querySelector('[aria-invalid="true"]') !== null;
      row.querySelector(".problem").hidden = !wrong;
      row.querySelector(".problem").textContent = wrong ? "Wanted: a number from −1000 to 1000. The last one still counts." : "";
      if (!good(input)) {
        announce(row.querySelector(".problem").textContent);
        return false;
      }
      key[name] = Number(input.value);
      changed();
      return true;
    }
    element("keys").append(row);
  }

  /** Something was changed: hide the answer if the reader wants to guess, and show the rest. */
  function changed() {
    hidden = element("guess-first").checked;
    element("guessed").value = "";
    show();
  }

  function show() {
    const result = attend(keys, settings());
    const { divisor, maskAfter } = settings();
    const answer = (text) => (hidden ? "?" : text);
    element("score-heading").textContent = divisor === 1 ? "Score" : `Score ÷ ${say(divisor)}`;
    element("mask-heading").textContent = maskAfter ? "No mask yet" : "After the mask";
    element("exp-heading").textContent = result.largest === -Infinity ? "" : `(score − ${say(result.largest)})`.replace("− −", "+ ");
    element("steps").replaceChildren(...keys.map((key, i) => stepRow(key, i, result, maskAfter)));
    element("exp-sum").textContent = answer(say(result.total));
    element("weight-sum").textContent = answer(say(result.weightSum));
    element("output").textContent = answer(say(result.output));
    element("summary").textContent = hidden ? "Guess first: what will the output be?" : summarise(keys, result);
    element("why").textContent = hidden ? "" : explain(keys, result, { maskAfter });
    element("guess").hidden = !hidden;
    element("add").setAttribute("aria-disabled", String(keys.length === MOST_KEYS));
    element("remove").setAttribute("aria-disabled", String(keys.length === 1));
    announce(`${element("summary").textContent} ${element("why").textContent}`);
  }

  function stepRow(key, i, result, maskAfter) {
    const row = document.createElement("tr");
    row.classList.toggle("masked", key.masked);
    const heading = document.createElement("th");
    heading.scope = "row";
    heading.textContent = key.masked ? `${i + 1} masked` : `${i + 1}`;
    row.append(heading);
    const lost = key.masked && maskAfter && !hidden ? ` (was ${say(result.shares[i])})` : "";
    const texts = [
      say(result.scaled[i]),
      say(result.masked[i]),
      hidden ? "?" : say(result.exps[i]),
      hidden ? "?" : say(result.weights[i]) + lost,
      say(key.value),
      hidden ? "?" : say(result.parts[i]),
    ];
    texts.forEach((text, column) => {
      const cell = row.insertCell();
      cell.textContent = text;
      if (column === 3) {
        cell.className = "weight";
        cell.append(bar(hidden ? 0 : result.weights[i]));
      }
    });
    return row;
  }

  function bar(weight) {
    const track = document.createElement("span");
    track.className = "bar";
    track.setAttribute("aria-hidden", "true");
    const fill = document.createElement("span");
    fill.style.width = `${100 * weight}%`;
    track.append(fill);
    return track;
  }

  /** Tell the screen reader, once the reader has stopped moving a slider. */
  function announce(text) {
    clearTimeout(spoken);
    spoken = setTimeout(() => (element("status").textContent = text), 500);
  }

  document.querySelectorAll("[data-example]").forEach((button) =>
    button.addEventListener("click", () => load(button.dataset.example))
  );
  element("add").addEventListener("click", () => {
    if (keys.length === MOST_KEYS) return announce(`${MOST_KEYS} keys are the most there can be.`);
    addKey({ score: 0, value: 5, masked: false });
    changed();
  });
  element("remove").addEventListener("click", () => {
    if (keys.length === 1) return announce("One key is the least there can be.");
    keys.pop();
    element("keys").lastElementChild.remove();
    changed();
  });
  document.querySelectorAll("input[name=order]").forEach((radio) => radio.addEventListener("change", changed));
  element("divisor").addEventListener("input", () => {
    const wrong = !good(element("divisor"));
    element("divisor").setAttribute("aria-invalid", String(wrong));
    changed();
    if (wrong) announce("Wanted: a number from 0.1 to 100. Until then it counts as 1.");
  });
  element("guess-first").addEventListener("change", changed);
  for (const form of ["controls", "settings"]) element(form).addEventListener("submit", (event) => event.preventDefault());
  element("guess").addEventListener("submit", (event) => {
    event.preventDefault();
    if (element("guessed").value === "") return announce("Wanted: a number.");
    const guess = Number(element("guessed").value);
    hidden = false;
    show();
    const { output } = attend(keys, settings());
    const right = Math.abs(guess - output) < 0.005 * Math.max(1, Math.abs(output));
    const verdict = right ? `You guessed ${say(guess)}: right.` : `You guessed ${say(guess)}; the output is ${say(output)}.`;
    element("summary").textContent = `${verdict} ${element("summary").textContent}`;
    announce(`${element("summary").textContent} ${element("why").textContent}`);
    element("summary").tabIndex = -1;
    element("summary").focus(); // the button that had the focus is gone
  });

  load("equal");
  clearTimeout(spoken); // nothing is announced before the reader has done something
  element("playground").hidden = false;
  if (window.parent !== window) fitIntoFrame();
}

/** In a frame, ask the page around it for the height that is needed, and show the theme that it shows. */
function fitIntoFrame() {
  document.documentElement.classList.add("framed");
  const tellHeight = () => {
    const height = Math.ceil(document.documentElement.getBoundingClientRect().height);
    window.parent.postMessage({ playgroundHeight: height }, "*");
  };
  tellHeight(); // the observer sleeps while the frame is out of sight
  new ResizeObserver(tellHeight).observe(document.body);
  window.addEventListener("message", (event) => {
    const theme = event.data && event.data.theme;
    if (event.source === window.parent && (theme === "light" || theme === "dark")) {
      document.documentElement.dataset.theme = theme;
    }
  });
}

if (typeof document !== "undefined") start();
