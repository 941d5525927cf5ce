const since = Date.now(), show = () => {  // JupyterLab scrolls to a cell before its panel is there
    const panel = element.closest(".jp-Cell")?.querySelector(".fa-panel:has(img)")
    if (panel) panel.scrollIntoView({block: "start"})
    else if (Date.now() - since < 5000) setTimeout(show, 50)
}
show()
