// SPDX-License-Identifier: Apache-2.0
#include "output/svg_canvas.h"

#include <fmt/format.h>

namespace weir::output {
namespace {

constexpr const char* kTypeface =
    "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif";

// Text for XML: names come from files, so any byte may be in them.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    }
  }
  return out;
}

std::string stroke(const StrokeStyle& style) {
  if (style.width_px == 0) return "";
  std::string text =
      fmt::format(" stroke=\"{}\" stroke-width=\"{:g}\"", style.color, style.width_px);
  if (style.dashed) text += " stroke-dasharray=\"5 3\"";
  if (style.opacity < 1) text += fmt::format(" stroke-opacity=\"{:g}\"", style.opacity);
  return text;
}

bool starts_letter(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

double letter_width(char c) {
  if (c >= 'A' && c <= 'Z') return c == 'I' || c == 'J' ? 0.45 : c == 'W' || c == 'M' ? 0.9 : 0.7;
  if (c >= '0' && c <= '9') return 0.62;
  switch (c) {
    case ' ':
    case '.':
    case ',':
    case ':':
    case 'i':
    case 'j':
    case 'l':
    case '|':
    case '\'':
      return 0.33;
    case 'f':
    case 't':
    case 'r':
    case '(':
    case ')':
    case '/':
    case '-':
      return 0.42;
    case 'm':
    case 'w':
      return 0.9;
    default:
      return 0.61;
  }
}

}  // namespace

void Canvas::rectangle(double x, double y, double width, double height, const ShapeStyle& style) {
  const std::string round = style.radius_px > 0 ? fmt::format(" rx=\"{:g}\"", style.radius_px) : "";
  body_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"{} fill=\"{}\"{}/>\n", x,
      y, width, height, round, style.fill, stroke(style.stroke));
}

void Canvas::text(double x, double y, std::string_view text, const TextStyle& style) {
  const char* anchor = style.anchor == Anchor::kMiddle ? " text-anchor=\"middle\""
                       : style.anchor == Anchor::kEnd  ? " text-anchor=\"end\""
                                                       : "";
  if (style.backed) {
    const double width = text_width(text, style.size_px, style.bold) + 6;
    const double left = style.anchor == Anchor::kMiddle ? x - width / 2
                        : style.anchor == Anchor::kEnd  ? x - width + 3
                                                        : x - 3;
    rectangle(left, y - style.size_px, width, style.size_px + 4,
              {.fill = "#ffffff", .stroke = {.width_px = 0}, .radius_px = 3});
  }
  body_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:g}\" fill=\"{}\"{}{}>{}</text>\n", x, y,
      style.size_px, style.color, style.bold ? " font-weight=\"bold\"" : "", anchor, escaped(text));
}

void Canvas::path(std::string_view data, const StrokeStyle& style) {
  body_ += fmt::format("<path d=\"{}\" fill=\"none\"{}/>\n", data, stroke(style));
}

void Canvas::line(double x1, double y1, double x2, double y2, const StrokeStyle& style) {
  path(fmt::format("M{:.1f} {:.1f}L{:.1f} {:.1f}", x1, y1, x2, y2), style);
}

void Canvas::circle(double x, double y, double radius, const ShapeStyle& style,
                    std::string_view hover) {
  body_ += fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\" fill=\"{}\"{}><title>{}</title></circle>\n",
      x, y, radius, style.fill, stroke(style.stroke), escaped(hover));
}

std::string Canvas::finish(double width, double height, std::string_view title) const {
  const std::string spoken =
      title.empty() ? "" : fmt::format("<title>{}</title>\n", escaped(title));
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"{2}\" role=\"img\">\n{3}"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{4}</svg>\n",
      width, height, kTypeface, spoken, body_);
}

double text_width(std::string_view text, double size_px, bool bold) {
  double width = 0;
  for (const char c : text) {
    if (starts_letter(c)) width += letter_width(c);
  }
  return width * size_px * (bold ? 1.1 : 1.0);
}

std::string fit(std::string_view text, double width, double size_px, bool bold) {
  if (text_width(text, size_px, bold) <= width + 0.5) return std::string(text);
  std::string cut(text);
  while (!cut.empty() && text_width(cut, size_px, bold) + size_px > width) {
    while (cut.size() > 1 && !starts_letter(cut.back())) cut.pop_back();
    cut.pop_back();
  }
  return cut + "…";
}

}  // namespace weir::output
