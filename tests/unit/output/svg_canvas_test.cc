// SPDX-License-Identifier: Apache-2.0
#include "output/svg_canvas.h"

#include <gtest/gtest.h>

#include <pugixml.hpp>

namespace weir::output {
namespace {

TEST(Canvas, DrawsAWellFormedDocumentOfWhatItWasTold) {
  Canvas canvas;
  canvas.rectangle(1, 2, 30, 40, {.fill = "#112233", .stroke = {.width_px = 0}, .radius_px = 0});
  canvas.rectangle(1, 2, 30, 40, {});
  canvas.line(0, 0, 10, 10, {.dashed = true, .opacity = 0.5});
  canvas.circle(5, 6, 3.5, {.fill = "#abcdef"}, "<5, 6>");
  canvas.text(7, 8, "a < b & \"c\"\x01", {.anchor = Anchor::kEnd});
  pugi::xml_document document;
  ASSERT_TRUE(document.load_string(canvas.finish(100, 50, "a & b").c_str()));
  const pugi::xml_node root = document.document_element();
  EXPECT_EQ(root.attribute("width").as_int(), 100);
  EXPECT_EQ(root.attribute("height").as_int(), 50);
  EXPECT_STREQ(root.child("title").child_value(), "a & b");
  auto node = root.child("rect").next_sibling("rect");  // the first is the background
  EXPECT_STREQ(node.attribute("fill").value(), "#112233");
  EXPECT_FALSE(node.attribute("stroke"));
  EXPECT_FALSE(node.attribute("rx"));
  EXPECT_TRUE(node.next_sibling("rect").attribute("stroke"));
  EXPECT_TRUE(root.child("path").attribute("stroke-dasharray"));
  EXPECT_EQ(root.child("path").attribute("stroke-opacity").as_double(), 0.5);
  EXPECT_STREQ(root.child("circle").child("title").child_value(), "<5, 6>");
  EXPECT_STREQ(root.child("text").child_value(), "a < b & \"c\" ");
  EXPECT_STREQ(root.child("text").attribute("text-anchor").value(), "end");
}

TEST(Canvas, HasNoTitleWhereNoneIsGiven) {
  EXPECT_EQ(Canvas().finish(1, 1, "").find("<title>"), std::string::npos);
}

TEST(Canvas, TextIsCutToItsWidthBetweenCharacters) {
  EXPECT_EQ(fit("GPU0", 100, 11), "GPU0");
  const std::string cut = fit("äöüäöüäöüäöüäöü", 60, 11);
  EXPECT_TRUE(cut.ends_with("…")) << cut;
  EXPECT_LE(text_width(cut, 11), 60);
  for (size_t i = 0; i + 3 < cut.size(); i += 2) {
    EXPECT_EQ(static_cast<unsigned char>(cut[i]), 0xc3) << "a character was cut in two";
  }
}

}  // namespace
}  // namespace weir::output
