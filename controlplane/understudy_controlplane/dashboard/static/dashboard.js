// Keeps the page up to date, moves over the map, and sends what an operator asks for to the API.
"use strict"
const root = document.body.dataset.root
const main = document.getElementById("main")
const byId = id => document.getElementById(id)

// Times: how long ago, beside the moment itself.
const spoken = seconds => {
  const ago = Math.abs(seconds)
  const text = ago < 90 ? `${Math.round(ago)} s` : ago < 5400 ? `${Math.round(ago / 60)} min` : ago < 172800 ? `${Math.round(ago / 3600)} h` : `${Math.round(ago / 86400)} days`
  return seconds < -1 ? `in ${text}` : `${text} ago`
}
let ahead = 0 // of this computer's clock against the control plane's
const tellAges = scope => {
  for (const one of scope.querySelectorAll("time[data-at]")) {
    const at = Number(one.dataset.at)
    one.title ||= one.textContent + " UTC"
    one.textContent = spoken(Date.now() / 1000 - ahead - at)
  }
}
// What scrolls can be reached by keys, and nothing else is in their way.
const reach = () => document.querySelectorAll(".wide").forEach(one => {
  const heads = [...one.querySelectorAll(".stack thead th")].map(head => head.textContent)
  if (heads.length) one.querySelectorAll(".stack tbody tr").forEach(row => [...row.cells].forEach((cell, at) => { cell.dataset.label = heads[at] }))
  if (one.scrollWidth > one.clientWidth + 1) { one.tabIndex = 0; one.setAttribute("role", "region"); one.ariaLabel ||= `Table: ${one.closest("[data-part]")?.querySelector("h2")?.textContent || document.title}` }
  else one.removeAttribute("tabindex")
})
addEventListener("resize", reach)
const noteClock = at => { if (at) ahead = Date.now() / 1000 - at }

// Dark and light.
const remembered = (() => { try { return localStorage.getItem("theme") } catch { return null } })()
if (remembered) document.documentElement.dataset.theme = remembered
byId("theme")?.addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light")
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark"
  try { localStorage.setItem("theme", document.documentElement.dataset.theme) } catch { /* it is not remembered */ }
})

byId("log-out")?.addEventListener("click", async () => {
  const ended = await fetch(`${root}v1/session`, { method: "DELETE", headers: { "Content-Type": "application/json" } }).catch(() => null)
  if (ended?.ok || ended?.status === 401) location.href = `${root}login`
  else tell("stale", "not logged out")
})

// Live updates.
const link = byId("link")
let seen = Number(main?.dataset.at || 0), heardAt = Date.now(), source = null, wait = 500
const tell = (state, text) => {
  if (link.dataset.state !== state) { link.dataset.state = state; link.textContent = text }
  document.body.classList.toggle("lost", state === "lost")
}
const warn = text => {
  const stale = byId("stale")
  if (!stale) return
  stale.hidden = !text
  if (stale.textContent !== text) stale.textContent = text
}
const replace = (id, html) => {
  const part = byId(id)
  if (!part || part.kept === html) return
  const focus = part.contains(document.activeElement) ? document.activeElement : null
  const key = focus && (focus.id ? `#${CSS.escape(focus.id)}` : focus.getAttribute("href") ? `a[href="${CSS.escape(focus.getAttribute("href"))}"]` : null)
  const open = [...part.querySelectorAll("details")].map(one => one.open)
  part.innerHTML = html // the control plane has escaped it
  const first = part.kept === undefined
  part.kept = html
  part.querySelectorAll("details").forEach((one, number) => { one.open = open[number] || false })
  tellAges(part)
  if (key) part.querySelector(key)?.focus()
  if (!first && id !== "status") {
    part.classList.remove("changed"); void part.offsetWidth; part.classList.add("changed")
  }
}
const shownNow = () => {
  const needs = document.querySelector("[data-needs]")
  const count = Number(needs?.dataset.needs || 0)
  document.title = document.title.replace(/^\(\d+\) /, "")
  if (count) document.title = `(${count}) ${document.title}`
  keepOnly()
  showCursor()
  reach()
}
const listen = () => {
  const query = new URLSearchParams({ ...Object.fromEntries(new URLSearchParams(location.search)), page: main.dataset.path, layout: main.dataset.layout, seen })
  source = new EventSource(`${root}dashboard/live?${query}`)
  const heard = () => { heardAt = Date.now(); wait = 500 }
  source.addEventListener("hello", heard)
  source.addEventListener("parts", event => {
    heard()
    const news = JSON.parse(event.data)
    for (const [id, html] of Object.entries(news.parts)) replace(id, html)
    seen = news.at
    noteClock(news.at)
    tell("live", "live")
    warn("")
    shownNow()
    document.dispatchEvent(new CustomEvent("understudy-parts"))
  })
  source.addEventListener("beat", event => {
    heard()
    const beat = JSON.parse(event.data)
    const age = Date.now() / 1000 - ahead - beat.at
    const stale = beat.error || (beat.at && age > 12 ? `The control plane has not looked at the cluster for ${Math.round(age)} s: what you see is from then.` : "")
    warn(stale)
    if (stale) tell("stale", "stale")
    else tell("live", "live")
  })
  source.addEventListener("reload", () => location.reload())
  source.onerror = () => { source.close(); source = null; again() }
}
const again = async () => {
  if (Date.now() - heardAt > 3000) {
    tell("lost", "disconnected")
    warn(`No connection to the control plane: what you see is from ${spoken((Date.now() - heardAt) / 1000)}.`)
  }
  try {
    const session = await fetch(`${root}v1/session`)
    if (session.status === 401) return location.reload()
  } catch { /* it is asked again */ }
  setTimeout(listen, wait)
  wait = Math.min(wait * 2, 10000)
}
if (main?.dataset.layout) {
  noteClock(seen)
  tellAges(document)
  reach()
  tell("still", "connecting")
  listen()
  setInterval(() => {
    tellAges(document)
    if (source && Date.now() - heardAt > 12000) source.onerror()
  }, 5000)
} else tell("still", "")
addEventListener("pagehide", () => source?.close())

// The map: pointer and keys.
const map = byId("map")
let cursor = null // { group, index }
const kinds = () => Object.fromEntries([...document.querySelectorAll("[data-code]")].map(one => [one.dataset.code, one.textContent.trim().replace(/^\d+\s*/, "")]))
const namesOf = group => (group.names ||= group.dataset.nodes.split(" "))
const wordsOf = ({ group, index }) => {
  const code = group.querySelector("svg").dataset.tiles[index]
  const title = group.querySelector("h3").title
  return `${namesOf(group)[index]}, ${title}: ${kinds()[code] || "not in service"}`
}
const showCursor = () => {
  document.querySelectorAll(".cursor").forEach(one => one.remove())
  if (!map || !cursor) return
  const svg = cursor.group.querySelector("svg"), columns = Number(svg.dataset.columns)
  const box = document.createElementNS("http://www.w3.org/2000/svg", "rect")
  for (const [name, value] of Object.entries({ x: (cursor.index % columns) * 10 - 1, y: Math.floor(cursor.index / columns) * 10 - 1, width: 10, height: 10, rx: 1, class: "cursor" })) box.setAttribute(name, value)
  svg.append(box)
  const words = wordsOf(cursor)
  if (byId("pointed").textContent !== words) byId("pointed").textContent = words
}
const tileAt = event => {
  const group = event.target.closest?.(".g")
  const svg = group?.querySelector("svg")
  if (!svg) return null
  const box = svg.getBoundingClientRect(), columns = Number(svg.dataset.columns)
  const unit = box.width / svg.viewBox.baseVal.width
  const column = Math.floor((event.clientX - box.left) / unit / 10), row = Math.floor((event.clientY - box.top) / unit / 10)
  const index = row * columns + column
  return column >= 0 && column < columns && row >= 0 && index < svg.dataset.tiles.length ? { group, index } : null
}
const visit = () => { if (cursor) location.href = `${root}dashboard/nodes/${encodeURIComponent(namesOf(cursor.group)[cursor.index])}` }
map?.addEventListener("pointermove", event => {
  const tile = tileAt(event)
  if (tile && (tile.group !== cursor?.group || tile.index !== cursor.index)) { cursor = tile; showCursor() }
})
map?.addEventListener("click", event => { const tile = tileAt(event); if (tile) { cursor = tile; visit() } })
map?.addEventListener("keydown", event => {
  const groups = [...map.querySelectorAll(".g")]
  if (!groups.length) return
  if (event.key === "Enter") return visit()
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: "down", ArrowUp: "up", Home: "home", End: "end" }[event.key]
  if (step === undefined) return
  event.preventDefault()
  if (!cursor) { cursor = { group: groups[0], index: 0 }; showCursor(); return }
  let at = groups.indexOf(cursor.group), { index } = cursor
  const columns = Number(cursor.group.querySelector("svg").dataset.columns)
  if (step === "home") { at = 0; index = 0 }
  else if (step === "end") { at = groups.length - 1; index = namesOf(groups[at]).length - 1 }
  else {
    index += step === "down" ? columns : step === "up" ? -columns : step
    if (index < 0 && at > 0) { at -= 1; index = namesOf(groups[at]).length - 1 }
    else if (index >= namesOf(groups[at]).length && at < groups.length - 1) { at += 1; index = 0 }
  }
  const group = groups[at]
  cursor = { group, index: Math.max(0, Math.min(index, namesOf(group).length - 1)) }
  showCursor()
  group.scrollIntoView({ block: "nearest" })
})

// The legend shows one kind alone.
let only = null
const keepOnly = () => {
  if (!map) return
  if (only) map.dataset.only = only
  else delete map.dataset.only
  document.querySelectorAll(".share").forEach(one => one.setAttribute("aria-pressed", String(one.dataset.code === only)))
}
document.addEventListener("click", event => {
  const share = event.target.closest(".share")
  if (share) { only = only === share.dataset.code ? null : share.dataset.code; keepOnly() }
})

// Actions: what would come of it is asked first (a dry run stores nothing), then the reason, then it is sent.
const ask = byId("ask")
let asked = null
const send = async (path, body) => {
  const answer = await fetch(root + path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })
  return { ok: answer.ok, body: await answer.json() }
}
const more = button => JSON.parse(button.dataset.more || "{}")
const outcomes = { will_act: "It will be done", held_by_guard: "A guard holds it back for now", awaits_approval: "An operator has to approve it", observe_only: "It is only recorded" }
const said = answer => answer.ok ? `${outcomes[answer.body.outcome] || answer.body.outcome}: ${answer.body.why}.${answer.body.warning ? ` But ${answer.body.warning}.` : ""}` : `${answer.body.detail}${answer.body.hint ? `; ${answer.body.hint}` : ""}`
document.addEventListener("click", async event => {
  const button = event.target.closest(".act")
  if (!button) return
  asked = button
  byId("ask-title").textContent = button.dataset.title
  byId("ask-yes").textContent = button.textContent
  byId("ask-yes").disabled = false
  byId("ask-problem").textContent = ""
  byId("ask-prospect").textContent = "Asking what would come of it …"
  byId("ask-reason").value = ""
  ask.showModal()
  byId("ask-reason").focus()
  try {
    const prospect = await send(button.dataset.act, { ...more(button), reason: "what would come of it", dry_run: true })
    byId("ask-prospect").textContent = said(prospect)
    byId("ask-yes").disabled = !prospect.ok
  } catch { byId("ask-prospect").textContent = "The control plane does not answer." }
})
byId("ask-no")?.addEventListener("click", () => ask.close())
byId("ask-form")?.addEventListener("submit", async event => {
  event.preventDefault()
  const reason = byId("ask-reason").value.trim()
  if (!reason) { byId("ask-problem").textContent = "Give a reason that the next operator understands."; return }
  byId("ask-yes").disabled = true
  try {
    const answer = await send(asked.dataset.act, { ...more(asked), reason })
    if (answer.ok) { ask.close(); byId(asked.id)?.focus(); tell("live", "sent"); setTimeout(() => tell("live", "live"), 1500); return }
    byId("ask-problem").textContent = said(answer)
  } catch { byId("ask-problem").textContent = "The control plane does not answer: it is not known whether the request arrived. Look before you repeat it." }
  byId("ask-yes").disabled = false
})

// On a phone the pages are one line that scrolls: the present one is in view.
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" })

// "/" finds a node or job.
document.addEventListener("keydown", event => {
  if (event.key === "/" && !event.target.closest("input, textarea")) { event.preventDefault(); byId("q").focus() }
})
