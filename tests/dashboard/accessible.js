// What a page lacks for people who do not see it, or see it badly: one line each. Rules: WCAG 2.2, 1.1.1, 1.3.1, 1.4.3, 1.4.11, 2.4.1, 2.4.6, 3.1.1, 4.1.2.
(() => {
  const found = []
  const say = (what, one) => found.push(`${what}: ${one.outerHTML.slice(0, 120)}`)
  const visible = one => one.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })
  const all = selector => [...document.querySelectorAll(selector)].filter(visible)
  const nameOf = one => (one.getAttribute("aria-label") || one.labels?.[0]?.textContent || one.textContent || one.getAttribute("title") || "").trim()
  if (!document.documentElement.lang) found.push("the page has no language")
  if (!document.title) found.push("the page has no title")
  if (all("main").length !== 1) found.push("the page does not have one main part")
  if (document.querySelectorAll("h1").length !== 1) found.push("the page does not have one first heading")
  if (!all("nav[aria-label]").length) found.push("the page has no named navigation")
  if (document.querySelector(".skip")?.getAttribute("href") !== "#main") found.push("no link skips the navigation")
  for (const one of all("button, a[href], input, textarea, select, summary")) if (!nameOf(one)) say("it has no name", one)
  for (const one of all("svg")) if (one.getAttribute("aria-hidden") !== "true" && !(one.getAttribute("role") === "img" && one.getAttribute("aria-label"))) say("it has no text", one)
  for (const one of all("th")) if (!one.scope) say("it is not said what it is the head of", one)
  for (const one of document.querySelectorAll("[aria-labelledby], [aria-describedby]")) for (const id of `${one.getAttribute("aria-labelledby") || ""} ${one.getAttribute("aria-describedby") || ""}`.trim().split(/\s+/)) if (!document.getElementById(id)) say(`it refers to ${id}, which is not there`, one)
  const ids = [...document.querySelectorAll("[id]")].map(one => one.id)
  for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) found.push(`two elements have the id ${id}`)
  for (const one of all(".wide")) if (one.scrollWidth > one.clientWidth + 1 && one.tabIndex < 0 && !one.querySelector("a, button, summary, [tabindex]")) say("it scrolls, and no key reaches it", one)

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true })
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1)
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
    return [r, g, b, a / 255]
  }
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1]
  const behind = one => {
    const layers = []
    for (let at = one; at; at = at.parentElement) { layers.push(rgba(getComputedStyle(at).backgroundColor)); if (layers.at(-1)[3] === 1) break }
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255, 1])
  }
  const light = ([r, g, b]) => { const [x, y, z] = [r, g, b].map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * x + .7152 * y + .0722 * z }
  const contrast = (one, two) => { const [a, b] = [light(one), light(two)].sort((x, y) => y - x); return (a + .05) / (b + .05) }
  const written = all("body *").filter(one => [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
  for (const one of written) {
    const style = getComputedStyle(one), background = behind(one), size = parseFloat(style.fontSize)
    const ink = over(rgba(one instanceof SVGElement ? style.fill : style.color), background)
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5
    const ratio = contrast(ink, background)
    if (ratio < needed) say(`contrast ${ratio.toFixed(2)} instead of ${needed}`, one)
  }
  return found
})()
