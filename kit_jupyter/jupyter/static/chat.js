// The view of a conversation: one module for a cell's output, the chat panel and a saved turn.
//
// Theory of operation: `Store` keeps the tree of turns that the kernel describes (see protocol.py) and
// heals it (a gap in frame numbers or lengths asks for the whole). `View` draws a store into an element:
// what changed is noted, and written once per animation frame. Finished Markdown blocks are frozen; only
// the tail of a growing text is drawn again. All text enters by textContent, or through the renderer,
// which sanitises; it comes once per page from globalThis.__kit__.render, or from the kernel on request.
//
// export default: factory for anywidget, one per model. mount({model, el}): anything with get, on, off, send.

const K = (globalThis.__kit__ ??= {});
const STREAMED = ["text", "arguments", "output"];
const LINES = 20;

// ------------------------------------------------------------------ store

export class Store {
  constructor(model) {
    this.model = model;
    this.views = new Set();
    this.asked = false;
    this.reset(model.get("view") || {});
    this.onMessage = (frame) => this.take(frame);
    model.on("msg:custom", this.onMessage);
    if (!this.saved) this.ask("sync", { n: this.n, page: !!document.getElementById("jupyter-config-data") });
  }
  close() { this.model.off("msg:custom", this.onMessage); }
  send(kind, fields) { this.model.send({ kind, ...fields }); }
  ask(what, fields) { this.send("ask", { what, ...fields }); }

  reset(view) {
    this.n = view.n || 0;
    this.saved = !!view.saved;
    this.panel = !!view.panel;
    this.bar = view.bar || {};
    this.turns = (view.turns || []).map((t) => ({ ...t, items: (t.items || []).slice() }));
    this.index();
    this.views?.forEach((v) => v.redraw());
  }
  index() {
    this.byKey = new Map(this.turns.map((t) => [t.key, t]));
    this.byId = new Map();
    for (const t of this.turns) {
      t.items.forEach((i, at) => { i.id ??= `${t.key ?? "s"}.${at}`; this.byId.set(i.id, i); });
    }
  }
  take(frame) {
    if (!frame || !Array.isArray(frame.m)) return;
    if (frame.n !== undefined) {
      const whole = frame.m.some((m) => m.kind === "state" && m.view);
      if (frame.n !== this.n + 1 && !whole) { if (frame.n > this.n) this.resync(); return; }
      this.n = frame.n;
    }
    for (const m of frame.m) this[m.kind] ? this[m.kind](m) : console.warn("kit: unknown message", m.kind);
  }
  resync() {
    if (this.asked) return;
    this.asked = true;
    setTimeout(() => { this.asked = false; }, 2000);
    this.ask("sync", { n: -1 });
  }
  tell(what, ...rest) { this.views.forEach((v) => v[what](...rest)); }

  start({ turn }) {
    if (this.byKey.has(turn.key)) return this.head(turn);
    const t = { ...turn, items: turn.items || [] };
    this.turns.push(t); this.byKey.set(t.key, t);
    this.tell("turnAdded", t);
  }
  head(turn) {
    const t = this.byKey.get(turn.key);
    if (!t) return;
    const { items, ...facts } = turn;
    Object.assign(t, facts);
    this.tell("turnChanged", t);
  }
  commit({ turn, item, sizes }) {
    const t = this.byKey.get(turn);
    if (!t) return this.resync();
    let known = this.byId.get(item.id);
    if (!known) { known = { ...item }; t.items.push(known); this.byId.set(item.id, known); }
    else Object.assign(known, item);
    if (item.done && !this.fits(known, sizes)) return this.resync();
    this.tell("itemChanged", t, known);
  }
  delta({ d }) {
    for (const [id, field, at, text] of d) {
      const item = this.byId.get(id);
      if (!item || !STREAMED.includes(field)) return this.resync();
      const have = item[field] || "";
      if (at > have.length) return this.resync();
      const fresh = text.slice(have.length - at);   // an overlap is not said twice
      if (!fresh) continue;
      item[field] = have + fresh;
      this.tell("grew", item, field, fresh);
    }
  }
  approval({ call, question }) {
    const item = this.byId.get(call);
    if (!item) return this.resync();
    item.question = question;
    this.tell("asked", item);
  }
  state(m) {
    if (m.view) { this.asked = false; return this.reset(m.view); }
    if (m.head) this.head(m.head);
    if (m.bar) { Object.assign(this.bar, m.bar); this.tell("barChanged"); }
    if (m.module) gotModule(m.module);
    if (m.completions) this.tell("completed", m.completions);
    if (m.chip) this.tell("chipCame", m.chip);
  }
  end({ turn, status, error, facts, sizes }) {
    const t = this.byKey.get(turn);
    if (!t) return this.resync();
    for (const [id, s] of Object.entries(sizes || {})) if (!this.fits(this.byId.get(id), s)) return this.resync();
    Object.assign(t, { status, error, facts });
    this.tell("turnChanged", t, true);
  }
  /** What is left of a turn whose kernel is gone, as `TurnModel.saved` would have it; null where none runs. */
  left(why) {
    const t = this.turns.find((one) => one.status === "running");
    if (!t || this.panel) return null;
    const lasting = ({ id, call_id, seconds, done, question, progress, transient, ...rest }) =>
      rest.kind === "tool" && ["writing", "called", "asking", "running"].includes(rest.status) ? { ...rest, status: "stopped" } : rest;
    const items = t.items.filter((i) => !i.transient).map(lasting);
    const text = items.map((i) => i.kind === "text" ? (i.text || "").trim() : i.kind === "tool" ? `[${i.name}] ${i.arguments || ""} (${i.status})` : "");
    return {
      turn: { prompt: t.prompt || "", mode: t.mode || "prompt", status: "stopped", items, note: why },
      text: [...text, "[stopped]", `[note] ${why}`].filter(Boolean).join("\n\n"),
    };
  }
  fits(item, sizes) {
    return !!item && Object.entries(sizes || {}).every(([f, n]) => (item[f] || "").length === n);
  }
}

// ------------------------------------------------------------------ the renderer, once per page

const waiting = new Map();
async function gotModule({ name, code }) {
  if (!code) { K[name + "Absent"] = true; return waiting.get(name)?.(null); }
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  try { K[name] ??= await import(/* webpackIgnore: true */ url); } catch (e) { console.warn("kit: renderer", e); }
  finally { URL.revokeObjectURL(url); }
  waiting.get(name)?.(K[name] || null);
}
function renderer(store) {
  if (K.render) return Promise.resolve(K.render);
  if (K.renderAbsent) return Promise.resolve(null);
  if (!K.renderComing) {
    K.renderComing = new Promise((ok) => waiting.set("render", ok));
    if (K.loadRender) K.loadRender().then((r) => { K.render ??= r; waiting.get("render")(r); });
    else if (!store.saved) store.ask("module", { name: "render" });
    else waiting.get("render")(null);
  }
  return K.renderComing;
}

// ------------------------------------------------------------------ small things

function h(tag, attrs = {}, ...kids) {
  const el = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) {
    if (v === undefined || v === null || v === false) continue;
    if (k.startsWith("on")) el.addEventListener(k.slice(2), v);
    else if (k === "class") el.className = v;
    else el.setAttribute(k, v === true ? "" : v);
  }
  el.append(...kids.filter((x) => x !== null && x !== undefined));
  return el;
}
const button = (label, onclick, more = {}) => h("button", { type: "button", class: "kit-b", onclick, ...more }, label);
const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
function copy(text, from) {
  const done = () => { const old = from.textContent; from.textContent = "Copied"; setTimeout(() => { from.textContent = old; }, 1200); };
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(done, () => {});
  const t = h("textarea", { class: "kit-sr" }); t.value = text; from.after(t); t.select();
  try { document.execCommand("copy"); done(); } finally { t.remove(); from.focus(); }
}

// ------------------------------------------------------------------ Markdown that grows

/** Where finished blocks of `text` end from `from` on: blank lines outside fences, math and lists. */
export class Splitter {
  constructor() { this.at = 0; this.start = 0; this.fence = ""; this.math = false; this.blank = false; this.list = false; this.fresh = true; }
  feed(text, done) {
    const out = [];
    for (;;) {
      const nl = text.indexOf("\n", this.at);
      if (nl < 0) break;
      this.line(text.slice(this.at, nl), this.at, out);
      this.at = nl + 1;
    }
    if (done && this.start < text.length) { out.push([this.start, text.length]); this.start = this.at = text.length; }
    return out;
  }
  line(line, at, out) {
    if (this.fence) {
      const m = /^\s*(`{3,}|~{3,})\s*$/.exec(line);
      if (m && m[1][0] === this.fence[0] && m[1].length >= this.fence.length) this.fence = "";
      return;
    }
    if (this.math) { if (/(\$\$|\\\])\s*$/.test(line)) this.math = false; return; }
    if (!line.trim()) {
      if (this.list) this.blank = true;   // a list may go on after a blank line: the next line tells
      else if (!this.fresh) { out.push([this.start, at]); this.start = at; this.fresh = true; }
      return;
    }
    if (this.blank) {
      const goesOn = this.list && (/^\s{2,}\S/.test(line) || /^\s*([-*+]|\d{1,9}[.)])\s/.test(line));
      if (!goesOn) { out.push([this.start, at]); this.start = at; this.list = false; this.fresh = true; }
      this.blank = false;
    }
    if (this.fresh) { this.list = /^\s{0,3}([-*+]|\d{1,9}[.)])\s/.test(line); this.fresh = false; }
    const f = /^\s*(`{3,}(?=[^`]*$)|~{3,})/.exec(line);
    if (f) this.fence = f[1];
    else if (/^\s*(\$\$|\\\[)/.test(line) && !/\S\s*(\$\$|\\\])\s*$/.test(line.replace(/^\s*(\$\$|\\\[)/, ""))) this.math = true;
  }
}

/** Append plain text in blocks of some 8 kB, cut at ends of lines where there are any: cheap to lay out. */
function chunks(el, text, at) {
  for (let from = 0; from < text.length;) {
    if (!at.node || at.size > 64000 || (at.size > 8000 && at.line)) { at.node = el.appendChild(h("div", { class: "kit-far" })).appendChild(document.createTextNode("")); at.size = 0; }
    const nl = text.indexOf("\n", from + 8000), to = nl < 0 || nl > from + 64000 ? Math.min(text.length, from + 64000) : nl + 1;
    const piece = text.slice(from, to);
    at.line = piece.endsWith("\n");
    at.node.appendData(piece); at.size += piece.length; from = to;
  }
}

const GROUP = 40; // finished blocks

class Growing {
  constructor(view, el) { this.view = view; this.el = el; this.clear(); }
  clear() {
    this.el.textContent = "";
    this.split = new Splitter();
    this.tail = this.el.appendChild(h("div", { class: "kit-tail" }));
    this.drawn = -1; this.from = 0; this.raw = null; this.group = null;
  }
  write(text, done) {
    const r = K.render;
    if (!r && !done && !K.renderAbsent && !this.waits) {
      this.waits = true;   // what stands there raw till then is drawn again, also when nothing more comes
      renderer(this.view.store).then((got) => { this.waits = false; if (got) this.clear(); this.view.later(this.item); });
    }
    if (!r && !K.renderAbsent && done) renderer(this.view.store).then((got) => { if (got) { this.clear(); this.view.later(this.item); } });
    if (r) for (const [a, b] of this.split.feed(text, done)) {
      const el = h("div", { class: "kit-md" });
      this.fill(el, text.slice(a, b));
      this.place(el);
      this.from = b; this.tail.textContent = ""; this.raw = null; this.drawn = -1;
    }
    const rest = text.length - this.from;
    if (!rest) { this.tail.textContent = ""; return; }
    if (r && rest < 3000 && !this.raw && !this.split.fence) {
      if (this.drawn !== text.length) { this.fill(this.tail, text.slice(this.from)); this.tail.className = "kit-tail kit-md"; this.drawn = text.length; }
      return;
    }
    // Append only: a long tail, an open fence, or no renderer yet. New nodes now and then keep layout cheap.
    if (!this.raw) { this.tail.textContent = ""; this.tail.className = "kit-tail kit-raw" + (this.split.fence ? " kit-mono" : ""); this.raw = { at: this.from, node: null, size: 0 }; }
    const fresh = text.slice(this.raw.at);
    if (!fresh) return;
    this.raw.at = text.length;
    chunks(this.tail, fresh, this.raw);
  }
  /** Put a finished block before the tail. Full groups are left out of layout and paint while they are out of sight;
   *  the browser looks at each of them for each frame, so there must be few. */
  place(el) {
    if (!this.group || this.group.childElementCount >= GROUP) {
      if (this.group) { this.group.style.containIntrinsicSize = `auto ${4 * GROUP}em`; this.group.classList.add("kit-far"); }
      this.tail.before(this.group = h("div"));
    }
    this.group.append(el);
  }
  fill(el, source) {
    el.textContent = "";
    // A word of many thousand letters in a kerned font takes the browser minutes to break into lines.
    if (source.length > 200000 || (source.length > 4000 && /\S{4000}/.test(source) && !/^\s*(```|~~~|!\[)/.test(source))) { el.classList.add("kit-raw"); chunks(el, source, { node: null, size: 0 }); return; }
    try { el.append(K.render.renderMarkdown(source)); } catch (e) { el.classList.add("kit-raw"); el.textContent = source; return; }
    for (const pre of el.querySelectorAll("pre")) this.codeBar(pre);
  }
  codeBar(pre) {
    const code = () => pre.textContent.replace(/\n$/, "");
    const bar = h("div", { class: "kit-codebar" });
    const c = button("Copy", () => copy(code(), c), { "aria-label": "Copy code" });
    bar.append(c);
    const b = button("Insert below", () => this.view.insert(code(), b, this.el), { "aria-label": "Insert code as a cell below" });
    if (!this.view.store.saved || K.host?.insertCell) bar.append(b);
    pre.tabIndex = 0;
    const box = h("div", { class: "kit-code" });
    pre.replaceWith(box); box.append(bar, pre);
  }
}

// ------------------------------------------------------------------ keys

// Keys are data: where, which, and what they mean there. No handler compares a key itself.
const KEYS = {
  composer: { Enter: "send", "Ctrl+Enter": "send now", "Meta+Enter": "send now", Escape: "stop" },
  menu: { ArrowDown: "next", ArrowUp: "previous", Tab: "choose", Enter: "choose", Escape: "hide" },
  field: { Enter: "take", Escape: "leave" },
  log: { PageUp: "look back", ArrowUp: "look back", Home: "look back" },
  // Chords with Ctrl and Cmd are the notebook's; those with Enter would run a cell, and stay here.
  kept: Object.fromEntries(["Ctrl", "Meta"].flatMap((held) => ["", "Alt+", "Shift+"].map((more) => [`${held}+${more}Enter`, "keep"]))),
};
const meaning = (where, e) => e.isComposing ? undefined
  : KEYS[where][[e.ctrlKey && "Ctrl", e.metaKey && "Meta", e.altKey && "Alt", e.shiftKey && "Shift", e.key].filter(Boolean).join("+")];

// ------------------------------------------------------------------ one item

const STATUS = { writing: "being written", called: "waiting", asking: "needs your approval", running: "running…", done: "done", error: "failed", denied: "denied", stopped: "stopped" };
const PICTURE = /^image\/(png|jpeg|gif|webp|svg\+xml)$/;

class ItemView {
  constructor(view, turn, item) { this.view = view; this.turn = turn; this.item = item; this.el = h("div", { class: "kit-item kit-" + item.kind }); this.build(); }
  build() {
    const { item, el } = this;
    if (item.kind === "text") { this.grow = new Growing(this.view, el); this.grow.item = item; }
    else if (item.kind === "thinking") {
      this.fold = h("details", { open: !item.done && !this.view.store.saved }, h("summary", {}, "Thinking"), this.body = h("div", { class: "kit-raw kit-dim" }));
      el.append(this.fold);
    } else if (item.kind === "tool") this.buildTool();
    else if (item.kind === "said") el.append(h("span", { class: "kit-tag" }, item.mode === "steer" ? "steer" : "you"), h("span", { class: "kit-raw" }, item.text || ""));
    else if (item.kind === "notice") { el.classList.add("kit-" + (item.level || "info")); el.append(item.text || ""); }
    else el.append(h("span", { class: "kit-tag" }, item.name || "source"), h("span", { class: "kit-raw" }, item.text || ""));
  }
  draw() {
    const { item } = this;
    if (this.grow) this.grow.write(item.text || "", !!item.done || this.view.store.saved);
    else if (item.kind === "thinking") {
      this.append("body", item.text || (item.redacted ? "(not shown by the service)" : ""));
      if ((item.done || this.view.store.saved) && !this.folded) { this.folded = true; this.fold.open = false; }
    } else if (item.kind === "tool") this.drawTool();
    if (item.kind === "text") this.drawMedia(this.el);
  }
  append(name, text) {             // append-only text of one element
    const el = this[name], have = this[name + "At"] || 0;
    if (text.length > have) { el.append(text.slice(have)); this[name + "At"] = text.length; }
  }
  buildTool() {
    const { item } = this;
    this.fold = h("details", { open: !this.view.store.saved },
      h("summary", {}, h("code", { class: "kit-name" }, item.name || "tool"), this.brief = h("span", { class: "kit-brief" }), this.status = h("span", { class: "kit-status" })),
      this.args = h("div", { class: "kit-args" }),
      this.prog = h("div", { class: "kit-prog", hidden: true, role: "progressbar", "aria-label": `progress of ${item.name || "tool"}`, "aria-valuemin": 0 }, h("i"), h("span")),
      this.out = h("pre", { class: "kit-out", hidden: true, tabindex: 0, "aria-label": "live output" }),
      this.result = h("div", { class: "kit-result" }));
    this.el.append(this.fold, this.bar = h("div", { class: "kit-approval", hidden: true }));
  }
  drawTool() {
    const { item } = this, s = item.status || "done";
    // What a person judges is what would run; that can differ from what the model wrote.
    if (item.question && Object.keys(objectOf(item.question.arguments) ?? {}).length) this.judged = item.question.arguments;
    const args = this.judged ?? item.arguments ?? "";
    if (this.argsText !== args) { this.argsText = args; this.drawArguments(args); this.brief.textContent = briefly(args); }
    this.el.dataset.status = s;
    this.status.textContent = (STATUS[s] || s) + (item.seconds >= 0.1 && !this.view.store.saved ? ` · ${item.seconds.toFixed(1)} s` : "") + (item.answer?.by && item.answer.effect === "deny" && item.answer.reason ? ` · ${item.answer.reason}` : "");
    this.drawProgress(item.progress);
    const settled = item.result !== undefined;
    if (item.output && !settled) { this.out.hidden = false; this.append("out", item.output); this.out.scrollTop = this.out.scrollHeight; }
    if (settled && this.resultText !== item.result) {
      this.resultText = item.result; this.out.hidden = true;
      this.result.textContent = "";
      if (item.diff) this.result.append(diffView(item.diff));
      if (item.result) this.result.append(bounded(item.result, !!item.is_error));
      if (!item.is_error && !item.media?.length && !this.touched && s !== "denied" && (item.result.match(/\n/g) || []).length > 4) this.fold.open = false;
      this.fold.addEventListener("toggle", () => { this.touched = true; });
    }
    this.drawMedia(this.el);
    this.drawApproval();
  }
  /** Short arguments as JSON (whom, where, which); then texts of several lines and code under their names, as they are. */
  drawArguments(text) {
    const of = objectOf(text), whole = of ? jsonOf(of) : written(text);
    if (this.argsDrawn === whole) return;   // the same, written otherwise: nothing on the page may move
    this.argsDrawn = whole;
    this.args.hidden = !text || whole === "{}";
    if (!of && this.argsRaw) { this.argsRaw.textContent = whole; return; }   // being written
    this.args.textContent = ""; this.argsRaw = null;
    if (!of) { this.argsRaw = this.args.appendChild(h("pre", { tabindex: 0, "aria-label": "arguments" }, whole)); return; }
    const { blocks, rest } = sorted(of);
    if (Object.keys(rest).length) {
      const line = jsonOf(rest);
      this.args.append(h("pre", { tabindex: 0, "aria-label": blocks.length ? "other arguments" : "arguments" }, line.length > 80 ? jsonOf(rest, 2) : line));
    }
    for (const [name, value] of blocks) {
      const pre = h("pre", { tabindex: 0, "aria-label": `argument ${name}` });
      this.args.append(h("div", { class: "kit-argname" }, written(name)), pre);
      this.code(pre, written(value), LANGUAGE[name]);
    }
  }
  /** Code as text; with colours when the renderer is there and what it makes is this text and nothing else. */
  code(pre, text, language) {
    pre.textContent = text;
    if (!language || text.length > 50000 || /\S{4000}/.test(text)) return;
    const colour = (r) => {
      const fence = "`".repeat(Math.max(2, ...(text.match(/`+/g) || []).map((run) => run.length)) + 1);
      try {
        const made = r.renderMarkdown(`${fence}${language}\n${text}\n${fence}`).querySelector("pre > code");
        if (made && made.textContent === text + "\n") { pre.textContent = ""; made.lastChild.textContent = made.lastChild.textContent.replace(/\n$/, ""); pre.append(...made.childNodes); }
      } catch { pre.textContent = text; }
    };
    if (K.render) colour(K.render);
    else renderer(this.view.store).then((r) => { if (r) colour(r); });
  }
  drawProgress(far) {
    this.prog.hidden = !far;
    if (!far) return;
    const [done, total] = far, n = (x) => x.toLocaleString("en", { maximumFractionDigits: 2 }), part = total ? Math.round(100 * done / total) : 0;
    this.prog.dataset.open = String(!total);   // how much there is nobody knows: the bar only says that it goes on
    this.prog.firstChild.style.width = total ? part + "%" : "";
    this.prog.lastChild.textContent = total ? `${n(done)} of ${n(total)} (${part} %)` : n(done);
    if (total) { this.prog.setAttribute("aria-valuemax", total); this.prog.setAttribute("aria-valuenow", done); } else this.prog.removeAttribute("aria-valuenow");
    this.prog.setAttribute("aria-valuetext", this.prog.lastChild.textContent);
  }
  drawMedia(el) {
    const media = this.item.media || [];
    this.shown ??= 0;
    for (; this.shown < media.length; this.shown++) {
      const m = media[this.shown];
      if (m.data && PICTURE.test(m.type)) el.append(h("img", { class: "kit-img", alt: m.name || "figure", src: `data:${m.type};base64,${m.data}` }));
      else el.append(h("div", { class: "kit-dim" }, `${m.name || "attachment"} (${m.type})`));
    }
  }
  drawApproval() {
    const q = this.item.question;
    if (!q) {
      if (this.askedFor) {   // its room stays until the turn is over: a click must not move the page
        const had = this.bar.contains(document.activeElement), a = this.item.answer;
        this.bar.style.minHeight = this.bar.offsetHeight + "px"; this.bar.textContent = a ? (a.effect === "deny" ? "denied" : "approved") : "";
        if (had) this.fold.querySelector("summary").focus({ preventScroll: true });
      }
      if (this.turn.status !== "running") this.bar.hidden = true;
      this.askedFor = null; return;
    }
    this.bar.style.minHeight = "";
    if (this.askedFor === q.text) return;
    this.askedFor = q.text; this.bar.hidden = false; this.bar.textContent = ""; this.fold.open = true;
    const call = this.item.call_id;
    // Kept with its words when the card is drawn anew, as after a lost frame: what a person wrote is not lost.
    const edits = (this.view.edits ??= new Map()), key = `${call}\n${q.text}\n${q.arguments}`;
    const answer = (fields) => { edits.delete(key); this.view.store.send("approve", { call, reason: "", scope: "once", arguments: null, ...fields }); this.bar.querySelectorAll("button").forEach((b) => { b.disabled = true; }); };
    const reason = h("input", { type: "text", class: "kit-in", placeholder: "why not?", title: "told to the model", "aria-label": "Reason for denying" });
    const edit = edits.get(key) ?? new Editing(q.arguments || this.item.arguments || "{}"), bad = edit.bad;
    edits.set(key, edit);
    const args = () => edit.el.hidden ? null : edit.read();
    const yes = (scope) => { const a = args(); if (a !== undefined) answer({ allow: true, scope, arguments: a }); };
    reason.addEventListener("keydown", (e) => { if (meaning("field", e) === "take") { e.preventDefault(); answer({ allow: false, reason: reason.value }); } });
    this.bar.setAttribute("role", "group"); this.bar.setAttribute("aria-label", `Approval of ${this.item.name}`);
    this.bar.append(asked(q.text || `Run ${this.item.name}?`, this.item.name, this.argsText), edit.el, bad, h("div", { class: "kit-row" },
      button("Approve", () => yes("once"), { class: "kit-b kit-go" }),
      button(q.suggestion ? `Always: ${q.suggestion}` : "Always", () => yes("always"), { title: "do not ask again for this" }),
      button("Edit arguments", (e) => { edit.el.hidden = !edit.el.hidden; if (!edit.el.hidden) edit.open(); e.target.setAttribute("aria-expanded", String(!edit.el.hidden)); }, { "aria-expanded": String(!edit.el.hidden) }),
      button("Deny", () => answer({ allow: false, reason: reason.value }), { class: "kit-b kit-no" }), reason));
    this.view.say(`Approval needed: ${this.item.name}`);
  }
}

// ------------------------------------------------------------------ arguments, and the question about them

const LANGUAGE = { __proto__: null, code: "python", command: "bash" };   // by the argument's name; these are shown as code always
const WIDE = 80;
// What Python's str.isprintable() refuses, but for line breaks and tabs.
const HIDDEN = /(?![ \n\t])[\p{C}\p{Z}]/gu;
const hex = (n, wide) => n.toString(16).padStart(wide, "0");
/** Text in which nothing can hide, as `visible` in approvers.py writes it. */
function written(text) {
  return text.replace(HIDDEN, (c) => { const n = c.codePointAt(0); return c === "\r" ? "\\r" : n < 256 ? "\\x" + hex(n, 2) : n < 65536 ? "\\u" + hex(n, 4) : "\\U" + hex(n, 8); });
}
/** JSON in which nothing can hide, and which is still the same value. */
function jsonOf(value, indent) {
  return JSON.stringify(value, null, indent).replace(HIDDEN, (c) => c.split("").map((unit) => "\\u" + hex(unit.charCodeAt(0), 4)).join(""));
}
/** The object that a JSON text tells, or null. Numbers keep their digits where the browser can do that. */
function objectOf(text) {
  const exact = (_, v, at) => typeof v === "number" && JSON.rawJSON && at?.source && at.source !== String(v) ? JSON.rawJSON(at.source) : v;
  try { const v = JSON.parse(text || "{}", exact); return v && typeof v === "object" && !Array.isArray(v) ? v : null; } catch { return null; }
}
/** Arguments that are shown as blocks of text, and the others. */
function sorted(of, fits = () => true) {
  const block = ([name, v]) => typeof v === "string" && !!v && fits(v) && (Object.hasOwn(LANGUAGE, name) || v.includes("\n") || v.length > WIDE);
  return { blocks: Object.entries(of).filter(block), rest: Object.fromEntries(Object.entries(of).filter((one) => !block(one))) };
}
/** The JSON that Python writes, which questions about functions hold. */
function pythonJson(v) {
  if (Array.isArray(v)) return `[${v.map(pythonJson).join(", ")}]`;
  if (v && typeof v === "object" && !JSON.isRawJSON?.(v)) return `{${Object.entries(v).map(([k, x]) => `${JSON.stringify(k)}: ${pythonJson(x)}`).join(", ")}}`;
  return JSON.stringify(v);
}
/** The question: its first line stands out, and what stands above already, letter for letter, is only named. */
function asked(text, tool, args) {
  const of = objectOf(args), { blocks } = of ? sorted(of) : { blocks: [] };
  if (blocks.length) {
    const json = Array.from(pythonJson(of)), cut = json.length > 2000 ? json.slice(0, 2000).join("") + " …" : json.join("");
    const whole = written(`Run ${tool} with ${cut}?`);
    if (text.startsWith(whole)) text = `Run ${tool} with the arguments above?` + text.slice(whole.length);
  }
  let pieces = [text];   // texts, and names of what stands above
  for (const [name, value] of blocks) {
    const code = written(value).replace(/\n+$/, "");
    if (!code.includes("\n") && code.length <= WIDE) continue;
    pieces = pieces.flatMap((piece) => {
      if (typeof piece !== "string") return [piece];
      const at = `\n${piece}\n`.indexOf(`\n${code}\n`);
      return at < 0 ? [piece] : [piece.slice(0, at).trimEnd(), { name }, piece.slice(at + code.length).replace(/^\n+/, "")];
    });
  }
  const nl = pieces[0].indexOf("\n"), first = nl < 0 ? pieces[0] : pieces[0].slice(0, nl);
  pieces[0] = nl < 0 ? "" : pieces[0].slice(nl + 1).replace(/^\n+/, "");
  const remark = (t) => t.split("\n").every((line) => !line.trim() || /^\(.*\)$/.test(line));
  return h("div", { class: "kit-q" + (text.includes("\n") ? " kit-long" : ""), tabindex: text.length > 400 || text.split("\n").length > 5 ? 0 : null, role: "group", "aria-label": "question" },
    h("div", { class: first.length > 200 ? "" : "kit-ask" }, first),
    ...pieces.filter(Boolean).map((p) => typeof p === "string" ? h("div", { class: "kit-raw" + (remark(p) ? " kit-dim" : " kit-mono") }, p) : h("div", { class: "kit-dim" }, `(${written(p.name)}: as shown above)`)));
}
/** Fields for the arguments of a call: texts with their lines as they are, all else as JSON. */
class Editing {
  constructor(text) {
    const of = objectOf(text);
    // A field would hide what cannot be seen, and change some line ends: such a text is edited as JSON.
    const { blocks: plain, rest } = of ? sorted(of, (v) => v === written(v)) : { blocks: [], rest: null };
    this.fields = plain.map(([name, v]) => [name, h("textarea", { class: "kit-in kit-mono kit-edit", rows: Math.min(20, Math.max(3, v.split("\n").length + 1)), spellcheck: "false", "aria-label": `Edited argument ${name}` }), v]);
    const json = rest ? jsonOf(rest, 2) : text;
    this.json = h("textarea", { class: "kit-in kit-mono kit-edit", rows: plain.length ? Math.min(6, json.split("\n").length + 1) : 6, spellcheck: "false", "aria-label": plain.length ? "Other edited arguments, JSON" : "Edited arguments, JSON" });
    this.fields.forEach(([, area, v]) => { area.value = v; });
    this.json.value = json;
    this.bad = h("span", { class: "kit-bad", role: "alert" });
    this.el = h("div", { hidden: true }, ...this.fields.flatMap(([name, area]) => [h("div", { class: "kit-argname" }, written(name)), area]), plain.length ? h("div", { class: "kit-argname" }, "other arguments, as JSON") : null, this.json);
  }
  open() { (this.fields[0]?.[1] ?? this.json).focus({ preventScroll: true }); }
  /** The arguments as they stand now; undefined, and a word about it, when they are none. */
  read() {
    let v;
    try { v = JSON.parse(this.json.value.trim() || "{}"); } catch (e) { this.bad.textContent = "not JSON: " + e.message; return undefined; }
    const twice = v && this.fields.find(([name]) => Object.hasOwn(v, name));
    this.bad.textContent = !v || typeof v !== "object" || Array.isArray(v) ? "not JSON of arguments: names and values in braces are wanted" : twice ? `${twice[0]} is given twice: in its own field and in the JSON` : "";
    return this.bad.textContent ? undefined : { ...v, ...Object.fromEntries(this.fields.map(([name, area]) => [name, area.value])) };
  }
}

function briefly(text) {
  const s = written(Object.values(objectOf(text) ?? {}).map((x) => typeof x === "string" ? x : JSON.stringify(x)).join(", ").replace(/\s+/g, " "));
  return s.length > 80 ? s.slice(0, 79) + "…" : s;
}
function bounded(text, isError) {
  const lines = text.split("\n");
  const pre = h("pre", { class: "kit-res" + (isError ? " kit-err" : ""), tabindex: 0, "aria-label": "result" }, lines.slice(0, LINES).join("\n"));
  if (lines.length <= LINES) return pre;
  let shown = LINES;
  const more = button("", () => {
    const next = Math.min(lines.length, shown === LINES ? 1000 : shown + 5000);
    pre.append("\n" + lines.slice(shown, next).join("\n")); shown = next;
    if (shown === lines.length) more.remove(); else label();
  });
  const label = () => { more.textContent = count(lines.length - shown, "more line"); more.setAttribute("aria-label", `show ${lines.length - shown} more lines`); };
  label();
  return h("div", {}, pre, more);
}
function diffView(text) {
  return h("pre", { class: "kit-res kit-diff", tabindex: 0, "aria-label": "changes" }, ...text.split("\n").map((l) => h("span", { class: /^\+(?!\+\+)/.test(l) ? "kit-plus" : /^-(?!--)/.test(l) ? "kit-minus" : "" }, l + "\n")));
}

// ------------------------------------------------------------------ the whole view

export class View {
  constructor(store, el) {
    this.store = store; this.el = el;
    this.pending = new Set(); this.frame = 0;
    this.gone = new AbortController();
    style(el);
    this.root = h("div", { class: "kit-view" + (store.panel ? " kit-panel" : ""), role: "region", "aria-label": store.panel ? "kit chat" : "kit answer", "data-lm-suppress-shortcuts": "true" });
    this.root.kitLeft = (why) => store.left(why);   // for whoever outlives the kernel
    this.live = h("div", { class: "kit-sr", role: "status", "aria-live": "polite" });
    this.log = h("div", { class: "kit-log", ...(store.panel ? { tabindex: 0, role: "log", "aria-live": "off", "aria-label": "conversation" } : {}) });
    this.end = h("div", { class: "kit-end", "aria-hidden": "true" });
    this.jump = button("↓ Jump to latest", () => { this.follow = true; this.toEnd(); }, { class: "kit-b kit-jump", hidden: true });
    this.foot = h("div", { class: "kit-foot" });
    this.root.append(this.live, this.log, this.jump, this.foot, this.end);
    el.append(this.root);
    this.root.addEventListener("keydown", (e) => { if (!(e.ctrlKey || e.metaKey) || meaning("kept", e)) e.stopPropagation(); }, { signal: this.gone.signal });
    // After a chord that Lab heard, its guard waits at the field for what the key writes, and takes the next line break
    // for its own Shift+Enter (evtKeydown in jupyterlab's application/src/lab.ts, 4.6): the break would be lost.
    this.root.addEventListener("beforeinput", (e) => { if (e.inputType === "insertLineBreak") e.stopPropagation(); }, { capture: true, signal: this.gone.signal });
    this.follow = true; this.seen = true;
    if (typeof IntersectionObserver !== "undefined") {
      this.watch = new IntersectionObserver((es) => { this.seen = es[es.length - 1].isIntersecting; if (this.seen) { this.follow = true; this.jump.hidden = true; } }, { rootMargin: "0px 0px 80px 0px" });
      this.watch.observe(this.end);
    }
    const away = (e) => { if (e.deltaY < 0 || meaning("log", e)) this.follow = false; };
    for (const type of ["wheel", "keydown"]) (store.panel ? this.log : document).addEventListener(type, away, { passive: true, signal: this.gone.signal, capture: true });
    this.log.addEventListener("scroll", () => { const l = this.log; const at = l.scrollHeight - l.scrollTop - l.clientHeight; if (at < 40) { this.follow = true; this.jump.hidden = true; } else if (at > 150 && !this.moving) this.follow = false; }, { passive: true, signal: this.gone.signal });
    store.views.add(this);
    this.redraw();
  }
  close() {
    this.gone.abort(); this.watch?.disconnect(); this.store.views.delete(this);
    cancelAnimationFrame(this.frame); clearTimeout(this.timer); this.root.remove();
  }
  say(text) { this.live.textContent = text; }
  /** Code as a cell below: by the page's own way; else by the kernel, which can at the end of a cell; else by hand. */
  insert(code, from, el) {
    if (K.host?.insertCell) return K.host.insertCell(code, el);
    if (this.store.bar.attached && this.running()) { this.store.ask("insert", { text: code }); from.textContent = "Comes below at the end"; from.disabled = true; this.say("the code comes as a cell below when the turn ends"); return; }
    copy(code, from);
    this.tell("Copied: paste it into a new cell.");
  }
  tell(text) { this.store.bar.note = text; this.drawFoot(); }

  redraw() {
    this.log.textContent = ""; this.heads = new Map(); this.items = new Map();
    if (this.store.panel !== this.root.classList.contains("kit-panel")) this.root.classList.toggle("kit-panel", this.store.panel);
    for (const t of this.store.turns) this.turnAdded(t);
    this.drawFoot();
  }
  turnAdded(t) {
    const head = { el: h("section", { class: "kit-turn", "aria-label": "turn" }) };
    head.prompt = head.el.appendChild(h("div", { class: "kit-prompt kit-raw", hidden: true }));
    head.chips = head.el.appendChild(h("div", { class: "kit-chips" }));
    head.body = head.el.appendChild(h("div", { class: "kit-body" }));
    head.wait = head.el.appendChild(h("div", { class: "kit-wait", }, h("i", { "aria-hidden": "true" }), h("i", { "aria-hidden": "true" }), h("i", { "aria-hidden": "true" }), h("span", { class: "kit-dim" })));
    head.foot = head.el.appendChild(h("div", { class: "kit-meta" }));
    this.heads.set(t, head);
    this.log.append(head.el);
    for (const i of t.items) this.itemOf(t, i);
    this.turnChanged(t);
    if (t.status === "running") { this.follow = true; this.say(t.waiting ? t.waiting + " …" : "kit is answering"); }
    for (const i of t.items) this.later(i);
  }
  itemOf(t, i) {
    let v = this.items.get(i);
    if (!v) { v = new ItemView(this, t, i); this.items.set(i, v); this.heads.get(t).body.append(v.el); }
    return v;
  }
  itemChanged(t, i) { this.itemOf(t, i); this.later(i); }
  asked(i) { this.later(i); }
  grew(i) { this.later(i); }
  later(i) {
    if (i) this.pending.add(i);
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => this.flush());
    // A hidden tab has no frames: the text must be there all the same when it is read.
    if (document.hidden) this.timer = setTimeout(() => this.flush(), 250);
  }
  flush() {
    cancelAnimationFrame(this.frame); clearTimeout(this.timer); this.frame = 0;
    const work = [...this.pending]; this.pending.clear();
    for (const i of work) this.items.get(i)?.draw();
    if (!work.length) return;
    if (this.store.saved) return;
    if (this.follow && (this.seen || this.store.panel)) this.toEnd();
    else if (this.running()) this.jump.hidden = this.store.panel ? this.follow : this.seen;
  }
  toEnd() {
    if (this.store.panel) { this.moving = true; this.log.scrollTop = this.log.scrollHeight; requestAnimationFrame(() => { this.moving = false; }); }
    else this.end.scrollIntoView({ block: "nearest" });
  }
  turnChanged(t, ended) {
    const head = this.heads.get(t);
    if (!head) return;
    // A turn is there before its prompt is known.
    if ((this.store.panel || t.showPrompt) && t.prompt && head.prompt.hidden) { head.prompt.textContent = t.prompt; head.prompt.hidden = false; }
    head.el.dataset.status = t.status;
    head.wait.hidden = t.status !== "running";
    const waits = t.waiting ? t.waiting + " …" : "";
    if (head.wait.lastChild.textContent !== waits) { head.wait.lastChild.textContent = waits; if (waits) this.say(waits); }
    head.chips.textContent = "";
    for (const c of t.chips || []) head.chips.append(chip(c));
    head.foot.textContent = "";
    // The cell's own error stands below, and says why.
    if (t.error?.raised) head.foot.append(h("span", { class: "kit-tag kit-bad", title: t.error.message }, "failed"));
    else if (t.error) head.foot.append(h("div", { class: "kit-error", role: "alert" }, t.error.message));
    if (t.status === "stopped") head.foot.append(h("span", { class: "kit-tag" }, "stopped"));
    const usage = usageLine(t.facts || {});
    if (usage && t.status !== "running") head.foot.append(h("span", {}, usage));
    if (t.status !== "running") {
      const answer = () => t.items.filter((i) => i.kind === "text").map((i) => i.text || "").join("\n\n");
      if (answer()) { const c = button("Copy", () => copy(answer(), c), { "aria-label": "Copy answer" }); head.foot.append(c); }
      if (this.store.panel && !this.store.saved) head.foot.append(
        button("Retry", () => this.retry(t)),
        button("Branch here", () => this.store.send("fork", { turn: t.key, do: "branch" }), { title: "go on from this answer; later turns are set aside" }));
      // A turn that is only shown again (%kit_show) is another cell's.
      if (this.store.rerun && !t.showPrompt) head.foot.append(button("Retry", () => this.store.rerun(), { title: "run this cell again", "aria-label": "Retry: run this cell again" }));
      if (t.branches?.length > 1) head.foot.append(branches(t, this.store));
    }
    if (t.note) head.foot.append(h("div", { class: "kit-note" }, t.note));
    if (ended) { for (const i of t.items) this.later(i); this.say(t.status === "error" ? "kit failed" : t.status === "stopped" ? "kit stopped" : "kit has answered"); }
    this.drawFoot();
  }
  barChanged() { this.drawFoot(); }

  // -- what one can do

  retry(t) { if (t) this.store.send("fork", { turn: t.key, do: "retry" }); }
  running() { return this.store.turns.find((t) => t.status === "running"); }
  drawFoot() {
    if (this.store.saved) { this.foot.hidden = true; return; }
    const t = this.running(), bar = this.store.bar, busy = !!t || !!bar.running;
    if (this.footKey === undefined) {
      this.queue = h("div", { class: "kit-queue" });
      this.tasks = h("ul", { class: "kit-tasks", "aria-label": "tasks", hidden: true });
      this.stop = button("■ Stop", () => this.store.send("abort", { turn: this.running()?.key, clear: false }), { class: "kit-b kit-no", "aria-label": "Stop" });
      this.over = button("Start over", () => this.retry(this.running()), { title: "stop, and ask the same again", "aria-label": "Start over: stop and ask the same again" });
      this.note = h("div", { class: "kit-note", role: "status", hidden: true });
      this.box = h("textarea", { class: "kit-in", rows: this.store.panel ? 2 : 1, spellcheck: "true" });
      this.chipRow = h("div", { class: "kit-chips" });
      this.menu = h("ul", { class: "kit-menu", role: "listbox", hidden: true });
      this.go = button("Send", () => this.submit(), { class: "kit-b kit-go" });
      this.now = button("Now", () => this.submit({ now: true }), { title: "interrupt the running step first", "aria-label": "Steer now" });
      this.next = button("After", () => this.submit({ after: true }), { title: "say it when the turn is done", "aria-label": "After: queue as follow-up" });
      this.box.addEventListener("keydown", (e) => this.key(e));
      this.box.addEventListener("input", () => this.typed());
      this.pick = h("div", { class: "kit-row kit-pick" });
      this.gauge = h("span", { class: "kit-dim" });
      this.foot.append(this.tasks, this.queue, this.note, this.chipRow, h("div", { class: "kit-row kit-compose" }, this.box, this.go, this.now, this.next, this.stop, this.over), this.menu);
      if (this.store.panel) this.foot.append(h("div", { class: "kit-row" }, this.pick, this.gauge));
      this.footKey = "";
    }
    this.foot.hidden = !this.store.panel && !busy && !bar.note;
    for (const e of [this.box, this.go]) e.hidden = !this.store.panel && !busy;
    this.note.hidden = !bar.note; if (this.note.textContent !== (bar.note || "")) this.note.textContent = bar.note || "";
    this.over.hidden = !busy || !(this.store.panel || bar.retry);
    this.stop.hidden = !busy; this.now.hidden = !busy; this.next.hidden = !busy || !this.store.panel;
    this.go.textContent = busy ? "Steer" : "Send";
    this.box.placeholder = busy ? "Steer: say something while it runs" : "Ask kit… @ attaches a variable";
    this.box.setAttribute("aria-label", busy ? "Steer the running turn" : "Prompt");
    const q = bar.queue || {};
    this.queue.textContent = "";
    for (const [name, list] of [["steer", q.steering], ["after", q.follow_up], ["not sent", q.returned]])
      for (const text of list || []) this.queue.append(h("div", { class: "kit-q1" }, h("span", { class: "kit-tag" }, name), text,
        name === "not sent" ? button("Use", () => { this.box.value = text; this.box.focus(); }) : null));
    this.tasks.hidden = !bar.tasks?.length; this.tasks.textContent = "";
    for (const k of bar.tasks || []) this.tasks.append(h("li", { "data-status": k.status || "" }, (k.status === "done" || k.status === "completed" ? "☑ " : "☐ ") + (k.text || k.title || k.content || "")));
    if (this.store.panel) this.drawPick(bar);
  }
  drawPick(bar) {
    const key = JSON.stringify([bar.model, bar.models, bar.session, bar.sessions]);
    const here = this.pick.contains(document.activeElement) ? document.activeElement : null;
    if (key !== this.pickKey && here?.tagName !== "INPUT") {   // not under the hands of somebody who types a name
      this.pickKey = key; this.pick.textContent = "";
      if (bar.model || bar.models?.length) this.pick.append(this.modelPick(bar));
      if (bar.session) this.pick.append(this.picker("session", bar.session, bar.sessions));
      if (here) this.pick.querySelector(`[aria-label="${here.getAttribute("aria-label")}"]`)?.focus({ preventScroll: true });
    }
    const g = bar.gauge, n = (x) => x.toLocaleString("en");
    this.gauge.textContent = "";
    if (g?.window) {
      const part = Math.min(1, g.tokens / g.window);
      this.gauge.append(h("meter", { class: "kit-meter", min: 0, max: 1, high: 0.8, optimum: 0, value: part, "aria-label": "context used" }), ` context ${Math.round(100 * part)} % (${n(g.tokens)} of ${n(g.window)} tokens)`);
    } else if (g?.tokens) this.gauge.append(`context ${n(g.tokens)} tokens`);
    const used = usageLine(bar.usage || {});
    if (used) this.gauge.append((g?.tokens ? " · " : "") + used);
  }
  picker(what, now, all, more = []) {
    const s = h("select", { class: "kit-in", "aria-label": what, onchange: () => { if (s.value) this.store.ask(what, { name: s.value }); } });
    for (const o of [...new Set([now, ...(all || [])])].filter(Boolean)) { const e = h("option", { value: o }, o); e.selected = o === now; s.append(e); }
    s.append(...more);
    return s;
  }
  /** The models there are, and a box for the name of any other. */
  modelPick(bar) {
    const box = h("input", { type: "text", class: "kit-in", hidden: true, placeholder: "provider/model", "aria-label": "name of another model", spellcheck: "false" });
    const none = bar.model ? [] : [h("option", { value: "", selected: true }, "chosen at the first prompt")];
    const s = this.picker("model", bar.model, bar.models, [...none, h("option", { value: "+" }, "another model…")]);
    const back = () => { box.hidden = true; s.hidden = false; s.value = this.store.bar.model || ""; s.focus(); this.drawFoot(); };
    s.addEventListener("change", (e) => { if (s.value !== "+") return; e.stopImmediatePropagation(); s.hidden = true; box.hidden = false; box.value = ""; box.focus(); }, true);
    box.addEventListener("keydown", (e) => {
      const means = meaning("field", e);
      if (means === "take") { e.preventDefault(); const name = box.value.trim(); back(); if (name) this.store.ask("model", { name }); }
      else if (means === "leave") { e.stopPropagation(); back(); }
    });
    return h("span", { class: "kit-row" }, s, box);
  }
  submit({ now = false, after = false } = {}) {
    const text = this.box.value, busy = !!this.running() || !!this.store.bar.running;
    if (!text.trim()) return;
    if (!busy) this.store.send("submit", { text, when_busy: "steer" });
    else if (after) this.store.send("follow_up", { text, turn: this.running()?.key });
    else this.store.send("steer", { text, now, turn: this.running()?.key });
    this.store.bar.note = ""; this.note.hidden = true;
    this.box.value = ""; this.chipRow.textContent = ""; this.follow = true; this.hideMenu();
  }
  key(e) {
    switch (this.menu.hidden ? undefined : meaning("menu", e)) {
      case "next": e.preventDefault(); return this.moveMenu(1);
      case "previous": e.preventDefault(); return this.moveMenu(-1);
      case "choose": e.preventDefault(); return this.choose(this.menuAt);
      case "hide": e.stopPropagation(); return this.hideMenu();
    }
    switch (meaning("composer", e)) {
      case "send": e.preventDefault(); return this.submit();
      case "send now": e.preventDefault(); return this.submit({ now: true });
      case "stop": if (this.running()) { e.preventDefault(); this.store.send("abort", { turn: this.running()?.key, clear: false }); }
    }
  }
  typed() {
    const before = this.box.value.slice(0, this.box.selectionStart), m = /(^|[\s(\[{,;])@([\w.:[\]/-]*)$/.exec(before);
    clearTimeout(this.typing);
    if (!m) this.hideMenu(); else this.store.ask("complete", { text: m[2] });
    const marks = [...this.box.value.matchAll(/(^|[\s(\[{,;])@(?!@)([\w:./-]+(?:\[\d+\])?)/g)].map((x) => x[2]);
    this.typing = setTimeout(() => { for (const k of marks) if (!this.chipRow.querySelector(`[data-mark="${CSS.escape(k)}"]`)) this.store.ask("chip", { mark: k });
      for (const c of [...this.chipRow.children]) if (!marks.includes(c.dataset.mark)) c.remove(); }, 200);
  }
  chipCame(c) { if (c && this.foot.isConnected && this.chipRow && !this.chipRow.querySelector(`[data-mark="${CSS.escape(c.mark)}"]`)) this.chipRow.append(chip(c)); }
  completed({ text, names }) {
    const before = this.box?.value.slice(0, this.box.selectionStart) || "";
    if (!before.endsWith("@" + text) || !names.length) return this.hideMenu();
    this.menu.textContent = ""; this.menuAt = 0; this.menu.hidden = false;
    names.slice(0, 12).forEach((n, at) => this.menu.append(h("li", { role: "option", "aria-selected": String(!at), onmousedown: (e) => { e.preventDefault(); this.choose(at); } }, n)));
    this.menuFor = text;
  }
  moveMenu(by) { const l = this.menu.children; l[this.menuAt]?.setAttribute("aria-selected", "false"); this.menuAt = (this.menuAt + by + l.length) % l.length; l[this.menuAt].setAttribute("aria-selected", "true"); }
  choose(at) {
    const name = this.menu.children[at]?.textContent, end = this.box.selectionStart;
    if (name) { const v = this.box.value; this.box.value = v.slice(0, end - this.menuFor.length) + name + " " + v.slice(end); this.box.selectionStart = this.box.selectionEnd = end - this.menuFor.length + name.length + 1; }
    this.hideMenu(); this.typed();
  }
  hideMenu() { if (this.menu) this.menu.hidden = true; }
}

function chip(c) {
  const label = `@${c.mark}` + (c.size ? ` · ${c.size}` : "");
  if (!c.preview) return h("span", { class: "kit-chip", "data-mark": c.mark, title: c.kind || "" }, label);
  return h("details", { class: "kit-chip", "data-mark": c.mark }, h("summary", {}, label), h("pre", { class: "kit-res", tabindex: 0 }, c.preview));
}
function branches(t, store) {
  const at = t.branches.indexOf(t.entry ?? t.facts?.entry);
  const to = (by) => store.send("fork", { turn: t.key, do: "branch", entry: t.branches[(at + by + t.branches.length) % t.branches.length] });
  return h("span", { class: "kit-branches" }, button("‹", () => to(-1), { "aria-label": "previous branch" }), `${at + 1} of ${t.branches.length}`, button("›", () => to(1), { "aria-label": "next branch" }));
}
function usageLine(f) {
  const out = [];
  if (f.model) out.push(f.model);
  if (f.input || f.output) out.push(`${(f.input || 0).toLocaleString("en")} in, ${(f.output || 0).toLocaleString("en")} out`);
  if (typeof f.cost === "number" && f.cost > 0) out.push("$" + f.cost.toFixed(f.cost < 0.1 ? 4 : 2));
  if (f.seconds) out.push(`${f.seconds.toFixed(1)} s`);
  return out.join(" · ");
}

// ------------------------------------------------------------------ style

function style(el) {
  const root = el.getRootNode?.() instanceof ShadowRoot ? el.getRootNode() : document.head;
  if (root.querySelector("style[data-kit]")) return;
  root.append(h("style", { "data-kit": "1" }, CSS_TEXT));
}
const V = (name, fallback) => `var(--jp-${name}, ${fallback})`;
const CSS_TEXT = `
.kit-view{--fg:${V("ui-font-color1", "#1b1b1b")};--dim:${V("ui-font-color2", "#595959")};--line:${V("border-color2", "#c8c8c8")};--soft:${V("layout-color2", "#f0f0f0")};--bg:${V("layout-color1", "#fff")};--accent:${V("brand-color1", "#1565c0")};--bad:${V("error-color0", "#b3261e")};
 color:var(--fg);background:var(--bg);font:${V("content-font-size1", "14px")}/1.5 ${V("content-font-family", "system-ui,sans-serif")};padding:2px 4px;text-align:start;overflow-wrap:anywhere}
.kit-view *{box-sizing:border-box}.kit-view [hidden]{display:none!important}
.kit-sr{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.kit-raw,.kit-view pre{white-space:pre-wrap;font-kerning:none;font-variant-ligatures:none}.kit-mono,.kit-view pre,.kit-view code{font-family:${V("code-font-family", "ui-monospace,monospace")};font-size:.92em}
.kit-dim,.kit-meta,.kit-note{color:var(--dim);font-size:.88em}.kit-meta{display:flex;gap:8px;align-items:center;flex-wrap:wrap;min-height:1px}
.kit-note{flex-basis:100%;border-inline-start:3px solid var(--accent);padding-inline-start:8px}
.kit-item{margin:4px 0}.kit-far{content-visibility:auto;contain-intrinsic-size:auto 4em}
.kit-md>:first-child{margin-top:0}.kit-md p{margin:0 0 .6em}.kit-md table{border-collapse:collapse;display:block;overflow-x:auto;max-width:100%;margin:.4em 0}.kit-md th,.kit-md td{border:1px solid var(--line);padding:3px 9px;text-align:start;background:none}.kit-md [align=right]{text-align:end}.kit-md [align=center]{text-align:center}.kit-md math[display=block]{margin:.5em 0}
.kit-md blockquote{border-inline-start:3px solid var(--line);margin:.4em 0;padding-inline-start:10px;color:var(--dim)}.kit-md h1,.kit-md h2,.kit-md h3,.kit-md h4{font-size:1.12em;font-weight:600;margin:.7em 0 .3em;line-height:1.3}
.kit-md code{background:var(--soft);padding:1px 4px;border-radius:3px;color:inherit}.kit-md pre code{background:none;padding:0;font-size:1em}.kit-md a{color:${V("content-link-color", "#0d5aa7")};text-decoration:underline}
.kit-view pre{margin:0;padding:8px 10px;background:var(--soft);color:var(--fg);border:0;border-radius:4px;overflow:auto;max-height:32em;white-space:pre-wrap;line-height:1.4}
.kit-md pre{white-space:pre}.kit-code{position:relative;margin:.4em 0}.kit-codebar{position:absolute;inset-inline-end:4px;top:4px;display:flex;gap:4px;opacity:0;transition:opacity .1s}.kit-code:hover .kit-codebar,.kit-code:focus-within .kit-codebar{opacity:1}
.kit-tool{border:1px solid var(--line);border-radius:6px;padding:4px 8px}.kit-tool summary,.kit-thinking summary{cursor:pointer}.kit-tool summary{display:flex;gap:8px;align-items:baseline}.kit-tool summary::before{content:"▸";color:var(--dim)}.kit-tool details[open]>summary::before{content:"▾"}
.kit-name{font-weight:600}.kit-brief{flex:1;min-width:0;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;color:var(--dim);font-size:.9em}.kit-status{color:var(--dim);font-size:.88em;white-space:nowrap}
.kit-tool pre{margin:4px 0}.kit-tool[data-status=asking]{border-color:var(--accent);box-shadow:0 0 0 1px var(--accent)}.kit-tool[data-status=error] .kit-status,.kit-tool[data-status=denied] .kit-status,.kit-bad,.kit-error{color:var(--bad)}
.kit-err{border-inline-start:3px solid var(--bad)!important}.kit-error{flex-basis:100%;font-weight:600}.kit-out{max-height:14em!important}
.kit-approval{padding:6px 0}.kit-q{margin-bottom:4px;max-height:7em;overflow:auto;white-space:pre-wrap}.kit-long{max-height:24em}.kit-ask{font-weight:600}.kit-argname{font-size:.88em;color:var(--dim);margin-top:4px}.kit-row{display:flex;gap:6px;margin-top:3px;align-items:center;flex-wrap:wrap}
.kit-b{font:inherit;font-size:.9em;color:var(--fg);background:var(--soft);border:1px solid var(--line);border-radius:4px;padding:2px 10px;cursor:pointer;min-height:24px}.kit-b:hover{border-color:var(--fg)}.kit-b:disabled{opacity:.6;cursor:default}
.kit-go{background:#0b57a4;border-color:#0b57a4;color:#fff}.kit-no{color:var(--bad);border-color:var(--bad);background:var(--bg)}
.kit-view :focus-visible{outline:2px solid var(--accent);outline-offset:1px}
.kit-in{font:inherit;color:var(--fg);background:${V("input-background", "var(--bg)")};border:1px solid ${V("border-color1", "#8a8a8a")};border-radius:4px;padding:3px 8px;min-width:0}textarea.kit-edit{width:100%;display:block;resize:vertical;font:.92em/1.4 ${V("code-font-family", "ui-monospace,monospace")};tab-size:4}.kit-compose .kit-in{flex:1;resize:vertical;min-height:28px;min-width:12em}.kit-view ::placeholder{color:var(--dim);opacity:1}
.kit-tag{display:inline-block;font-size:.8em;border:1px solid var(--line);border-radius:9px;padding:0 8px;margin-inline-end:6px;color:var(--dim)}.kit-tag.kit-bad{color:var(--bad);border-color:currentColor}
.kit-chips{display:flex;gap:6px;flex-wrap:wrap}.kit-chip{font-size:.85em;background:var(--soft);border:1px solid var(--line);border-radius:10px;padding:0 9px}.kit-chip summary{cursor:pointer}
.kit-notice{color:var(--dim);font-size:.9em}.kit-notice.kit-error,.kit-notice.kit-warning{border-inline-start:3px solid var(--bad);padding-inline-start:8px}
.kit-prompt{background:var(--soft);border-radius:8px;padding:6px 10px;margin:10px 0 4px auto;width:fit-content;max-width:90%}
.kit-img{max-width:100%;display:block;margin:4px 0;background:#fff}.kit-plus{color:${V("success-color0", "#1b5e20")}}.kit-minus{color:var(--bad)}
.kit-wait{display:flex;align-items:center;gap:4px;padding:4px 0}.kit-wait i{width:6px;height:6px;border-radius:50%;background:var(--dim);animation:kit-w 1.2s infinite}.kit-wait i:nth-child(2){animation-delay:.2s}.kit-wait i:nth-child(3){animation-delay:.4s}
@keyframes kit-w{0%,60%,100%{opacity:.25}30%{opacity:1}}@media (prefers-reduced-motion:reduce){.kit-wait i{animation:none}}
.kit-prog{position:relative;display:flex;align-items:center;min-height:20px;border:1px solid var(--line);border-radius:4px;overflow:hidden;margin:4px 0;background:var(--bg)}.kit-prog i{position:absolute;inset:0 auto 0 0;background:var(--soft);border-inline-end:3px solid var(--accent)}.kit-prog[data-open=true] i{width:30%;animation:kit-p 1.6s infinite linear}.kit-prog span{position:relative;padding:0 8px;font-size:.85em;line-height:1.2;white-space:nowrap}
@keyframes kit-p{from{left:-30%}to{left:100%}}@media (prefers-reduced-motion:reduce){.kit-prog i{animation:none!important}}.kit-wait span:empty{display:none}.kit-meter{width:6em;height:.9em;vertical-align:-1px}
.kit-end{height:1px}.kit-jump{position:sticky;bottom:6px;left:50%}.kit-tasks{list-style:none;margin:4px 0;padding:0}.kit-q1{font-size:.9em;padding:1px 0}
.kit-menu{list-style:none;margin:2px 0;padding:2px;border:1px solid var(--line);border-radius:4px;max-height:12em;overflow:auto}.kit-menu li{padding:1px 8px;cursor:pointer}.kit-menu li[aria-selected=true]{background:#0b57a4;color:#fff}
.kit-panel{display:flex;flex-direction:column;height:100%;max-height:100%;min-height:320px}.kit-panel .kit-log{flex:1;overflow-y:auto;min-height:200px;max-height:60vh}.kit-side .kit-panel .kit-log{max-height:none}.kit-panel .kit-turn{content-visibility:auto;contain-intrinsic-size:auto 8em}
@media (forced-colors:active){.kit-b,.kit-in,.kit-tool,.kit-chip{border:1px solid CanvasText}}
`;

// ------------------------------------------------------------------ doors

/** Draw `model` into `el`; returns the way to end it. */
export function mount({ model, el }) {
  const store = model.kitStore ?? new Store(model);
  const view = new View(store, el);
  return () => { view.close(); if (!store.views.size && !model.kitStore) store.close(); };
}

/** Draw a saved turn (the value of application/vnd.kit.turn+json) into `el`; `offer` gives it a Retry, or takes it away. */
export function mountSaved({ bundle, el }) {
  const store = new Store({ get: () => ({ saved: true, turns: [{ key: "s", ...bundle.turn }] }), on() {}, off() {}, send() {} });
  const view = new View(store, el);
  return {
    close() { view.close(); },
    offer(rerun) {
      const had = !!store.rerun;
      store.rerun = rerun;
      if (had !== !!rerun) for (const t of store.turns) view.turnChanged(t);
    },
  };
}

export default function factory() {
  let store;
  return {
    initialize({ model }) { store = new Store(model); return () => store.close(); },
    render({ model, el }) { store ??= new Store(model); const view = new View(store, el); return () => view.close(); },
  };
}
K.factory ??= factory;   // later views of this page take it from here
