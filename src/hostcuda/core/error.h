// SPDX-License-Identifier: Apache-2.0
// The outcome of a call. CUDA's runtime and driver API share these numbers, so that the two
// libraries over the core only cast.
#pragma once

namespace weir::hostcuda {

enum class Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidConfiguration = 9,
  kInvalidPitch = 12,  // of the runtime only
  kInvalidCopyDirection = 21,
  kInvalidDeviceFunction = 98,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kMapFailed = 205,
  kAlreadyMapped = 208,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerAlreadyEnabled = 704,
  kPeerNotEnabled = 705,
  kHostAlreadyRegistered = 712,
  kHostNotRegistered = 713,
  kNotPermitted = 800,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
  kGraphUpdateFailed = 910,
  kUnknown = 999,
};

struct ErrorText {
  int number;
  const char* runtime_name;  // "cudaErrorInvalidValue"
  const char* driver_name;   // "CUDA_ERROR_INVALID_VALUE"
  const char* text;
};

// nullptr for a number that CUDA does not have. Thread-safe.
const ErrorText* error_text(int number);

}  // namespace weir::hostcuda
