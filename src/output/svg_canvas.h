// SPDX-License-Identifier: Apache-2.0
// Canvas: shapes and text as an SVG document, for every tool that draws. One thread at a time.
#pragma once

#include <string>
#include <string_view>

namespace weir::output {

enum class Anchor : unsigned char { kStart, kMiddle, kEnd };

struct TextStyle {
  double size_px = 11;
  bool bold = false;
  const char* color = "#1e293b";
  Anchor anchor = Anchor::kStart;
  bool backed = false;  // on white, for text on lines
};

struct StrokeStyle {
  const char* color = "#64748b";
  double width_px = 1;  // 0: none
  bool dashed = false;
  double opacity = 1;
};

struct ShapeStyle {
  const char* fill = "#ffffff";
  StrokeStyle stroke = {};
  double radius_px = 6;
};

class Canvas {
 public:
  void rectangle(double x, double y, double width, double height, const ShapeStyle& style);
  // `y` is the baseline. Control characters become spaces.
  void text(double x, double y, std::string_view text, const TextStyle& style);
  // `data` is the d attribute of a path.
  void path(std::string_view data, const StrokeStyle& style);
  void line(double x1, double y1, double x2, double y2, const StrokeStyle& style);
  // `hover` is shown when the pointer is over the shape.
  void circle(double x, double y, double radius, const ShapeStyle& style, std::string_view hover);

  // The document. `title` is read by screen readers; empty: none.
  std::string finish(double width, double height, std::string_view title) const;

 private:
  std::string body_;
};

// Width of a text in a sans-serif typeface, somewhat generous, since the typeface is not known.
double text_width(std::string_view text, double size_px, bool bold = false);
// Cut to fit, with "…".
std::string fit(std::string_view text, double width, double size_px, bool bold = false);

}  // namespace weir::output
