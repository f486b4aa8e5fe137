// SPDX-License-Identifier: Apache-2.0
// XmlReader: an XML text from outside, parsed within limits, with the line of every element, so
// that an error can say file, line and reason. Internal to core/topo; not synchronized.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <pugixml.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace weir::topo {

struct XmlLimits {
  size_t bytes_max = 32u << 20;
  size_t element_count_max = 400'000;
  size_t attribute_count_max = 4'000'000;
  size_t depth_max = 128;
};

class XmlReader {
 public:
  // `name` is what errors call the text: usually the path of the file.
  static Result<std::unique_ptr<XmlReader>> load(std::string_view text, std::string_view name,
                                                 const XmlLimits& limits);

  pugi::xml_node root() const { return document_.document_element(); }
  size_t line(pugi::xml_node element) const;
  std::string where(pugi::xml_node element) const;  // "topo.xml:12"
  // "topo.xml:12: text".
  Status error(pugi::xml_node element, std::string_view text) const;

  // The attribute as text; nullopt when it is missing.
  static std::optional<std::string_view> text(pugi::xml_node element, const char* attribute);
  // The attribute as a number between min and max. nullopt when it is missing or empty. Integers in
  // base 10, or 16 after "0x".
  Result<std::optional<int64_t>> integer(pugi::xml_node element, const char* attribute, int64_t min,
                                         int64_t max) const;
  Result<std::optional<double>> number(pugi::xml_node element, const char* attribute, double min,
                                       double max) const;
  // Names of attributes of `element` that are not among `known`.
  static std::vector<std::string> unknown_attributes(pugi::xml_node element,
                                                     std::initializer_list<std::string_view> known);

 private:
  XmlReader() = default;
  size_t line_at(size_t offset) const;
  Status check(const XmlLimits& limits) const;

  std::string name_;
  std::vector<size_t> line_starts_;
  pugi::xml_document document_;
};

// `variable` = the value of a Result, or return its error from the calling function.
#define WEIR_TOPO_ASSIGN(variable, expression)                    \
  auto variable##_result = (expression);                          \
  if (!variable##_result.ok()) return variable##_result.status(); \
  auto variable = variable##_result.take()

}  // namespace weir::topo
