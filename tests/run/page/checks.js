// What tests measure in the page of a report.
"use strict";
const all = selector => [...document.querySelectorAll(selector)];
const isShown = element => element.getClientRects().length > 0;
const numbers = colour => colour.match(/[\d.]+/g).map(Number);

// The background behind an element: of itself, over those of the elements around it as far as it is translucent.
function backgroundOf(element) {
    if (!element) return [255, 255, 255];
    const [red, green, blue, alpha = 1] = numbers(getComputedStyle(element).backgroundColor);
    const behind = alpha < 1 ? backgroundOf(element.parentElement) : [0, 0, 0];
    return [red, green, blue].map((part, index) => part * alpha + behind[index] * (1 - alpha));
}

function luminance(colour) {
    const [red, green, blue] = colour.map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

// Texts with less contrast than WCAG 2's level AA requires.
function paleTexts() {
    const texts = all("body *").filter(element => isShown(element) && [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
    const contrast = element => {
        const both = [getComputedStyle(element).color, null].map(colour => luminance(colour ? numbers(colour) : backgroundOf(element)));
        return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    };
    return texts.length < 20 ? ["too few texts"] : texts.filter(text => contrast(text) < 4.5).map(text => text.outerHTML);
}

// The axis: its labels as numbers, its units, and whether its labels overlap or leave the picture.
function axis() {
    const labels = all("#axis span"), parts = labels.map(label => label.textContent.split(" "));
    const boxes = labels.map(label => label.getBoundingClientRect());
    const right = document.getElementById("axis").getBoundingClientRect().right;
    const values = parts.map(([number]) => Number(number));
    const steps = values.slice(1).map((value, index) => Number((value - values[index]).toPrecision(6)));
    return {
        values, units: [...new Set(parts.map(([, unit]) => unit))], steps: [...new Set(steps)],
        overlaps: boxes.some((box, index) => box.right > (boxes[index + 1]?.left ?? right)),
    };
}

// Texts that are cut off, or that are drawn over their neighbours.
const cutLabels = () => all("#labels a").filter(label => label.scrollWidth > label.clientWidth).map(label => label.textContent);

// Tables that are wider than their place and show no scroll bar, and the number of those that show one.
function scrolling() {
    const wide = all(".scroll").filter(box => isShown(box) && box.scrollWidth > box.clientWidth);
    const seen = wide.filter(box => box.offsetHeight - box.clientHeight >= 6 && getComputedStyle(box).backgroundImage !== "none");
    return { wide: wide.length, seen: seen.length, page: document.documentElement.scrollWidth - document.documentElement.clientWidth };
}

const column = (table, title) => {
    const index = all(`#${table} th`).findIndex(cell => cell.textContent === title);
    return all(`#${table} tr`).slice(1).map(row => row.cells[index].textContent);
};
const emptyColumns = () => all("table").filter(isShown).flatMap(table => [...table.rows[0].cells]
    .filter((cell, index) => [...table.rows].slice(1).every(row => !row.cells[index].textContent)).map(cell => cell.textContent));

// The rows of the picture that have pixels of the colour of failures.
function redRows() {
    const canvas = document.getElementById("timeline"), scale = canvas.width / canvas.clientWidth;
    const colour = getComputedStyle(document.documentElement).getPropertyValue("--failed").trim();
    const red = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
    return all("#labels li").map((_, row) => row).filter(row => {
        const data = canvas.getContext("2d").getImageData(0, row * 24 * scale, canvas.width, 24 * scale).data;
        for (let at = 0; at < data.length; at += 4) if (red.every((part, index) => data[at + index] === part)) return true;
        return false;
    });
}

// The difference between the strongest and the weakest part of a colour of the style: 0 for a grey.
const saturation = name => {
    const colour = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const parts = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
    return Math.max(...parts) - Math.min(...parts);
};

// The widths of the stacked bar's pieces, in hundredths of the whole.
function shares() {
    const widths = all("#parts span").filter(isShown).map(piece => piece.getBoundingClientRect().width);
    const whole = widths.reduce((sum, width) => sum + width, 0);
    return widths.map(width => Math.round(width / whole * 100));
}
