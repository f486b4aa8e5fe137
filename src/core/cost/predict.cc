// SPDX-License-Identifier: Apache-2.0
#include "core/cost/predict.h"

#include "core/cost/prediction.h"
#include "core/cost/prediction_memo.h"

namespace weir::cost {

Predicted predict_anew(const algo::Algorithm& algorithm, const Workload& work, const Table& table) {
  return Prediction(algorithm, work, table).made();
}

double predict(const algo::Algorithm& algorithm, const Workload& work, const Table& table) {
  const PredictionMemo::Key key = PredictionMemo::key_of(algorithm, work, table);
  if (!key) return predict_anew(algorithm, work, table).ns;
  PredictionMemo& memo = PredictionMemo::of_process();
  if (const auto kept = memo.find(*key)) return kept->ns;
  Prediction prediction(algorithm, work, table);
  const double ns = prediction.made().ns;
  memo.keep(*key, {ns, prediction.bound_ns(), prediction.expected_ns(), prediction.is_long()});
  return ns;
}

}  // namespace weir::cost
